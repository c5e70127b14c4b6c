//go:build tools

// Package etcdupstream pins the module with etcd's own tests, and all modules that they need. It contains no code.
package etcdupstream

import (
	_ "go.etcd.io/etcd/tests/v3/common"
	_ "go.etcd.io/etcd/tests/v3/e2e"
)
