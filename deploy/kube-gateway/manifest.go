// Package kubegateway contains the manifests of kube-gateway, for programs that apply them.
package kubegateway

import _ "embed"

// NodePath contains the permissions that the node path needs, without those for watches (watches.yaml).
//
//go:embed node-path.yaml
var NodePath []byte
