# Sums up the results of run.sh and compares them with expected.txt. Of tests that
# failed, only those count as unexpected that have no failed subtest to blame.

# expected.txt: "FAIL|SKIP|FLAKY package test — reason"; a flaky test may also pass.
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

# A test is ours if our search was attached in it, in one that contains it, or in
# one that it contains.
$1 == "attached" || $1 == "left" {
	mark[$2 " " $3] = $1
	if ($1 == "attached")
		for (parent = $2 " " $3; sub(/\/[^\/]*$/, "", parent) && parent ~ / /; )
			attachedBelow[parent] = 1
	next
}

# The counts of a process only grow, so the last are those of all of it.
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

function ours(key) {
	if (attach == "0" || mark[key] == "attached" || attachedBelow[key])
		return 1
	for (; !mark[key] && sub(/\/[^\/]*$/, "", key) && key ~ / /; )
		;
	return mark[key] == "attached"
}

function judge(key, package, known) {
	package = key
	sub(/ .*/, "", package)
	if (result[key] == "pass") {
		count[package, ours(key) ? "pass" : "without"]++
		return
	}
	known = key in expected && (expected[key] == result[key] || expected[key] == "flaky" && result[key] == "fail")
	known = known || key in failedBelow
	count[package, result[key] == "fail" && known ? "known" : result[key]]++
	if (key in failedBelow)
		return
	printf "%s %s%s\n", toupper(result[key]), key, known ? "" : "  UNEXPECTED"
	if (!known)
		bad = 1
}

END {
	# What the search that is compared with does is not what is expected of ours.
	if (attach == "0")
		delete expected
	print ""
	for (i = 1; i <= keyCount; i++)
		judge(keys[i])

	print ""
	for (i = 1; i <= packageCount; i++) {
		p = packages[i]
		printf "%-4s %s: %d passed, %d failed, %d skipped in %.0fs; %d without our search; %s\n", packageResult[p], p,
			count[p, "pass"], count[p, "fail"] + count[p, "known"], count[p, "skip"], seconds[p],
			count[p, "without"], decided[p] == "" ? "no decisions" : decided[p]
		# It did not compile, it panicked or it ran out of time.
		if (packageResult[p] == "fail" && !hasFailed[p]) {
			print "     UNEXPECTED: failed as a whole, see the log"
			bad = 1
		}
		passed += count[p, "pass"]
		failed += count[p, "fail"]
		skipped += count[p, "skip"]
		knownFailures += count[p, "known"]
		without += count[p, "without"]
	}

	# An entry is out of date if its test passed, or if there is no such test in
	# a package that ran, unless only some of the tests were asked for.
	for (key in expected) {
		split(key, part, " ")
		if (expected[key] == "flaky" && key in result)
			continue
		if (key in result ? result[key] != expected[key] : part[1] in packageResult && filtered == "false") {
			print "OUT OF DATE in expected.txt: " toupper(expected[key]) " " key
			bad = 1
		}
	}

	if (passed == 0 || status > 1)
		bad = 1
	printf "\n%d tests in which no scheduler had our search are not counted\n", without
	printf "%d passed, %d failed, %d skipped, %d known failures\n", passed, failed, skipped, knownFailures
	exit bad
}
