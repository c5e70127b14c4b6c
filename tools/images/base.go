package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the numeric user and group of the programs. 65532 is the non-root user of many images.
const user = 65532

// certificates is the path of the CA certificates.
const certificates = "etc/ssl/certs/ca-certificates.crt"

// baseFiles are the files that all images have besides the program: CA certificates, the user, the order of name
// resolution, which glibc reads, and a folder for temporary files.
func baseFiles() []file {
	return []file{
		{path: "etc", mode: 0o755 | os.ModeDir},
		{path: "etc/group", mode: 0o644, content: fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", user)},
		{path: "etc/nsswitch.conf", mode: 0o644, content: []byte("hosts: files dns\n")},
		{path: "etc/passwd", mode: 0o644, content: fmt.Appendf(nil,
			"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/tmp:/sbin/nologin\n", user, user)},
		{path: certificates, mode: 0o644, content: rootCertificates()},
		{path: "tmp", mode: 0o777 | os.ModeDir | os.ModeSticky},
	}
}

// rootCertificates returns the root certificates of Mozilla, in PEM. They are those of a Go module, so they do not
// depend on the machine that builds the images. Roots that Mozilla trusts only for some certificates are missing,
// because a PEM file cannot say so.
func rootCertificates() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}
