# Inserts kube-gateway into a file of Kubernetes that starts an API server for tests: after the server has started, its
# client's configuration gets the gateway's address. The files are cmd/kube-apiserver/app/testing/testserver.go and
# test/integration/framework/test_server.go.

/^import \($/ {
	print
	print "\t\"github.com/k8s-1m/k8s-1m/test/gateway-upstream/through\""
	print ""
	imported++
	next
}

# Both files complete the options of the server here.
/^\tcompletedOptions, err := (s\.Complete\(tCtx\)|opts\.Complete\(ctx\))$/ {
	print "\tif err := through.Prepare(" (/:= s\./ ? "s" : "opts") "); err != nil {"
	print (/:= s\./ ? "\t\treturn result, err" : "\t\tt.Fatal(err)")
	print "\t}"
	prepared++
}

/^\tresult\.ServerOpts = s$/ {
	print "\tresult.ClientConfig, err = through.Start(t, s, result.ClientConfig, through.FrontProxy{Cert: s.ProxyClientCertFile, Key: s.ProxyClientKeyFile})"
	print "\tif err != nil {"
	print "\t\treturn result, err"
	print "\t}"
	started++
}

/^\tkubeAPIServerClient, err := client\.NewForConfig\(kubeAPIServerClientConfig\)$/ {
	# The client that reads metrics at the end keeps its connection, because some tests replace certificates.
	print "\tdirect, err := client.NewForConfig(kubeAPIServerClientConfig)"
	print "\tif err != nil {"
	print "\t\tt.Fatal(err)"
	print "\t}"
	print "\tproxy, err := through.SignFrontProxy(certDir, proxySigningCert, proxySigningKey, opts.Authentication.RequestHeader.AllowedNames)"
	print "\tif err != nil {"
	print "\t\tt.Fatal(err)"
	print "\t}"
	print "\tkubeAPIServerClientConfig, err = through.Start(t, opts, kubeAPIServerClientConfig, proxy)"
	print "\tif err != nil {"
	print "\t\tt.Fatal(err)"
	print "\t}"
	started++
}

{ sub(/CheckMetricInvariants\(ctx, kubeAPIServerClient,/, "CheckMetricInvariants(ctx, direct,") }

{ print }

END {
	if (imported != 1 || prepared != 1 || started != 1) {
		print "hook.awk: found " imported + 0 " imports, " prepared + 0 " completed options and " started + 0 " client configurations instead of 1: adapt hook.awk to this version of Kubernetes" >"/dev/stderr"
		exit 1
	}
}
