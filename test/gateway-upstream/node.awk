# Changes tests of Kubernetes that act as nodes, so that the node path of kube-gateway can serve them: their clients use
# certificates in place of tokens and impersonation, and what is served only under further conditions meets these. The
# number of changes must be that in the variable "changes".

# add appends a line to the output.
function add(line) {
	lines[++count] = line
	if (line ~ /through\./)
		imports = 1
}

function addCheck() {
	add("\tif err != nil {")
	add("\t\tt.Fatal(err)")
	add("\t}")
}

# auth: clients with a token.
/^\tconfigCopy\.BearerToken = user$/ {
	add($0)
	add("\tconfigCopy = *through.Certificate(&configCopy)")
	changed++
	next
}

# Clients that impersonate a node.
/^\tnewCfg\.Impersonate\.Groups = \[\]string\{"system:authenticated", "system:nodes"\}$/ {
	add($0)
	add("\tnewCfg = through.Certificate(newCfg)")
	changed++
	next
}

# auth: the gateway learns a Lease from the answer to the first renewal, and serves the following ones.
/^\texpectAllowed\(t, updateNode1Lease\(node1Client\)\)$/ {
	add($0)
	add($0)
	changed++
}

# kubelet, watches of Secrets: the client is a kubelet, whose pods refer to the Secrets.
/^\tlistObj := func\(/ {
	add("\tkubelet, err := kubernetes.NewForConfig(through.Kubelet(server.ClientConfig, \"node1\"))")
	addCheck()
	changed++
}

/^\t\treturn client\.CoreV1\(\)\.Secrets\(namespace\)\.(List|Watch)\(/ {
	sub(/client/, "kubelet")
	changed++
}

/^\tt\.Log\(time\.Now\(\), "finished creating 1000 secrets"\)$/ {
	add("\terr = through.ReferToSecrets(ctx, server.ClientConfig, testNamespace, \"node1\", 1000)")
	addCheck()
	changed++
}

{ add($0) }

END {
	if (changed != changes) {
		print "node.awk: made " changed + 0 " changes instead of " changes ": adapt node.awk to this version of Kubernetes" >"/dev/stderr"
		exit 1
	}
	for (i = 1; i <= count; i++) {
		print lines[i]
		if (imports && lines[i] == "import (") {
			print "\t\"github.com/k8s-1m/k8s-1m/test/gateway-upstream/through\""
			print ""
			imports = 0
		}
	}
}
