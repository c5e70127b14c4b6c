# Reads kube-scheduler's pkg/scheduler/scheduler.go and writes it with a hook: New
# calls AfterNew, if a test binary has set it, with the scheduler that it returns.

/^func New\(/ { inNew = 1 }

inNew && /^\treturn sched, nil$/ {
	print "\tif AfterNew != nil {"
	print "\t\tif err := AfterNew(sched, options.profiles); err != nil {"
	print "\t\t\treturn nil, err"
	print "\t\t}"
	print "\t}"
	hooked++
}

/^}/ { inNew = 0 }

{ print }

END {
	print ""
	print "// AfterNew is what test/upstream of k8s-1m attaches its search with."
	print "var AfterNew func(*Scheduler, []schedulerapi.KubeSchedulerProfile) error"
	if (hooked != 1) {
		print "hook.awk: New of this Kubernetes has " hooked + 0 " lines \"return sched, nil\", not one: look where the hook belongs now" >"/dev/stderr"
		exit 1
	}
}
