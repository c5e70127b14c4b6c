# Sums up what the node path served. The first file says what must be served:
#   PACKAGE TEST COUNTER[,COUNTER]...
# The second one has the results of the tests, and the reports of the gateways (see through/node_path.go):
#   served PACKAGE TEST COUNTER=NUMBER...
# Prints "decided PACKAGE COUNTS" for summary.awk, and "MISSING ..." for each test that passed without the requests that
# must be served in it. A test and its subtests count together.

/^(#|$)/ { next }

FILENAME == ARGV[1] {
	expected[$1 " " $2] = $3
	next
}

$1 == "pass" {
	passed[$2 " " $3] = 1
}

$1 == "served" {
	packages[$2] = 1
	for (i = 4; i <= NF; i++) {
		split($i, counter, "=")
		sum[$2, counter[1]] += counter[2]
		test = $3
		do
			ofTest[$2 " " test, counter[1]] += counter[2]
		while (sub(/\/[^\/]*$/, "", test))
	}
}

END {
	for (package in packages)
		printf "decided %s the node path served %d renewals, %d lists and %d watches, went on with %d watches, delivered %d events, and forwarded %d requests\n",
			package, sum[package, "renewals"], sum[package, "lists"], sum[package, "watches"], sum[package, "continued"], sum[package, "events"], sum[package, "forwarded"]
	for (key in expected) {
		if (!(key in passed))
			continue
		count = split(expected[key], names, ",")
		for (i = 1; i <= count; i++)
			if (!ofTest[key, names[i]])
				print "MISSING " key ": the node path counted no " names[i]
	}
}
