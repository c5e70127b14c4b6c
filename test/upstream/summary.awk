# Prints a summary of the results of Kubernetes' tests and compares the results with expected.txt. A
# failed test that has a failed subtest is not compared: only its subtests are. A passed test counts only
# if it used the program under test, which "subject" names.

# expected.txt: "FAIL|SKIP|FLAKY package test — reason"; a flaky test may also pass. "test/*" means any
# subtests of the test, of which at least one must have this result.
FILENAME == ARGV[1] {
	if ($0 !~ /^(#|$)/) {
		if ($0 !~ /^(FAIL|SKIP|FLAKY) [^ ]+ [^ ]+ — ./) {
			print "expected.txt: line " FNR " is not \"FAIL|SKIP|FLAKY package test — reason\""
			bad = 1
		}
		expected[$2 " " $3] = tolower($1)
	}
	next
}

# "attached" or "left" with a package and a test: this test used the subject (dist-scheduler's node
# search was attached to a scheduler, or requests went through kube-gateway), or did not use it.
$1 == "attached" || $1 == "left" {
	mark[$2 " " $3] = $1
	if ($1 == "attached")
		for (parent = $2 " " $3; sub(/\/[^\/]*$/, "", parent) && parent ~ / /; )
			attachedBelow[parent] = 1
	next
}

# "decided" with a package and the scheduler's counts. The counts of a process only increase, so the last
# ones are the totals.
$1 == "decided" {
	package = $2
	sub(/^decided [^ ]+ /, "")
	decided[package] = $0
	next
}

# A package without tests is reported as skipped.
$3 == "-" {
	if ($1 != "skip") {
		packages[++packageCount] = $2
		seconds[$2] = $4
		packageResult[$2] = $1
	}
	next
}

{
	key = $2 " " $3
	keys[++keyCount] = key
	result[key] = $1
	if ($1 == "fail") {
		hasFailed[$2] = 1
		for (parent = key; sub(/\/[^\/]*$/, "", parent) && parent ~ / /; )
			failedBelow[parent] = 1
	}
}

# usesSubject returns whether the subject was used in a test, in one of its subtests, or in its closest
# parent that has a report.
function usesSubject(key) {
	if (attach == "0" || mark[key] == "attached" || attachedBelow[key])
		return 1
	for (; !mark[key] && sub(/\/[^\/]*$/, "", key) && key ~ / /; )
		;
	return mark[key] == "attached"
}

# isExpected returns whether expected.txt has the result of a test, by its name or as a subtest.
function isExpected(key, entry) {
	for (entry = key; ; entry = entry "/*") {
		if (entry in expected && (expected[entry] == result[key] || expected[entry] == "flaky" && result[key] == "fail")) {
			used[entry] = 1
			return 1
		}
		sub(/\/\*$/, "", entry)
		if (!sub(/\/[^\/]*$/, "", entry) || entry !~ / /)
			return 0
	}
}

# judge counts the result of a test, and prints it unless the test passed. package and known are local
# variables.
function judge(key, package, known) {
	package = key
	sub(/ .*/, "", package)
	if (result[key] == "pass") {
		count[package, usesSubject(key) ? "pass" : "without"]++
		return
	}
	known = isExpected(key) || key in failedBelow
	count[package, result[key] == "fail" && known ? "known" : result[key]]++
	if (key in failedBelow)
		return
	printf "%s %s%s\n", toupper(result[key]), key, known ? "" : "  UNEXPECTED"
	if (!known)
		bad = 1
}

END {
	# expected.txt lists the results with the subject only.
	if (attach == "0")
		delete expected
	print ""
	for (i = 1; i <= keyCount; i++)
		judge(keys[i])

	print ""
	for (i = 1; i <= packageCount; i++) {
		p = packages[i]
		printf "%-4s %s: %d passed, %d failed, %d skipped in %.0fs; %d without %s%s\n", packageResult[p], p,
			count[p, "pass"], count[p, "fail"] + count[p, "known"], count[p, "skip"], seconds[p],
			count[p, "without"], subject, decided[p] == "" ? "" : "; " decided[p]
		# The package did not compile, a test panicked, or the package exceeded its timeout.
		if (packageResult[p] == "fail" && !hasFailed[p]) {
			print "     UNEXPECTED: the package failed, but no test of it failed; see the log"
			bad = 1
		}
		passed += count[p, "pass"]
		failed += count[p, "fail"]
		skipped += count[p, "skip"]
		knownFailures += count[p, "known"]
		without += count[p, "without"]
	}

	# An entry is out of date if its test had another result. It is also out of date if its
	# package ran without this test, unless the flags of go test selected only some tests.
	for (key in expected) {
		split(key, part, " ")
		if (expected[key] == "flaky" && key in result || key in used)
			continue
		if (key in result ? result[key] != expected[key] : part[1] in packageResult && filtered == "false") {
			print "OUT OF DATE in expected.txt: " toupper(expected[key]) " " key
			bad = 1
		}
	}

	if (passed == 0 || status > 1)
		bad = 1
	printf "\n%d tests passed without %s and are not counted\n", without, subject
	printf "%d passed, %d failed, %d skipped, %d known failures\n", passed, failed, skipped, knownFailures
	exit bad
}
