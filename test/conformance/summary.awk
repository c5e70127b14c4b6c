# Prints a summary of the results of run.sh and compares the results with expected.txt. A failed test
# that has a failed subtest is not compared: only its subtests are.

# expected.txt: "FAIL|SKIP package test — reason"
NR == FNR {
	if ($0 !~ /^(#|$)/) {
		if ($0 !~ /^(FAIL|SKIP) [^ ]+ [^ ]+ — ./) {
			print "expected.txt: line " FNR " is not \"FAIL|SKIP package test — reason\""
			bad = 1
		}
		expected[$2 " " $3] = tolower($1)
	}
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
	total[$1]++
	count[$2, $1]++
	# If a test ran several times, a failure takes precedence.
	if (!(key in result))
		keys[++keyCount] = key
	if (!(key in result) || $1 == "fail")
		result[key] = $1
	if ($1 == "fail") {
		hasFailed[$2] = 1
		for (parent = key; sub(/\/[^\/]*$/, "", parent) && parent ~ / /; )
			failedBelow[parent] = 1
	}
}

END {
	print ""
	for (i = 1; i <= packageCount; i++) {
		p = packages[i]
		printf "%-4s %s: %d passed, %d failed, %d skipped in %.0fs\n", packageResult[p], p,
			count[p, "pass"], count[p, "fail"], count[p, "skip"], seconds[p]
		# The package did not compile, a test panicked, or the package exceeded its timeout.
		if (packageResult[p] == "fail" && !hasFailed[p]) {
			print "     UNEXPECTED: the package failed, but no test of it failed; see the log"
			bad = 1
		}
	}

	print ""
	for (i = 1; i <= keyCount; i++) {
		key = keys[i]
		if (result[key] == "pass" || key in failedBelow)
			continue
		known = key in expected && expected[key] == result[key]
		printf "%s %s%s\n", toupper(result[key]), key, known ? "" : "  UNEXPECTED"
		if (!known)
			bad = 1
	}

	# An entry is out of date if its test had another result. It is also out of date if its
	# package ran without this test, unless the flags of go test selected only some tests.
	for (key in expected) {
		split(key, part, " ")
		if (key in result ? result[key] != expected[key] : part[1] in packageResult && filtered == "false") {
			print "OUT OF DATE in expected.txt: " toupper(expected[key]) " " key
			bad = 1
		}
	}

	if (keyCount == 0 || status > 1)
		bad = 1
	if (status > 0 && !total["fail"] && !bad) {
		print "go test failed, but no test failed; see the log"
		bad = 1
	}
	printf "\n%d passed, %d failed, %d skipped\n", total["pass"], total["fail"], total["skip"]
	exit bad
}
