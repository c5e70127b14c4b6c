package PACKAGE_test

import (
	"k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/test/upstream/attach"
)

func init() { scheduler.AfterNew = attach.Hook() }
