# Inserts a hook into kube-scheduler's pkg/scheduler/scheduler.go: before New returns a scheduler, it
# calls AfterNew with this scheduler, if a test binary has set AfterNew.

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
	print "// AfterNew is the hook with which test/upstream of k8s-1m attaches dist-scheduler's node search."
	print "var AfterNew func(*Scheduler, []schedulerapi.KubeSchedulerProfile) error"
	if (hooked != 1) {
		print "hook.awk: scheduler.New has " hooked + 0 " lines \"return sched, nil\" instead of 1: adapt hook.awk to this version of Kubernetes" >"/dev/stderr"
		exit 1
	}
}
