package gateway

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// defaultRequests is the number of random requests, and defaultSeed what makes them; GATEWAY_REQUESTS and
// GATEWAY_SEED (a number, or "random") change them.
const (
	defaultRequests        = 400
	defaultSeed     uint64 = 1
)

// changing is what changes by itself between two answers: the revision in the message about a version that is too
// large, times, and versions of lists in YAML and protobuf. age is an age in a table.
var (
	changing = regexp.MustCompile(`current: [0-9]+|[0-9-]+T[0-9:]+Z|resourceVersion: "[0-9]+"|\x12[\x01-\x0b][0-9]+\x1a\x00`)
	age      = regexp.MustCompile(`"[0-9dhms]+"`)
)

// request is an HTTP request of the differential test.
type request struct {
	method, path string
	fields       http.Header
	body         string
}

func (r request) String() string {
	return fmt.Sprintf("%s %s %v %.200s", r.method, r.path, r.fields, r.body)
}

// answer is what a client sees of an answer.
type answer struct {
	Code   int
	Fields http.Header
	Body   any
}

// generator makes random requests. None changes the cluster: writes are dry runs or invalid.
type generator struct{ *rand.Rand }

func pick[T any](g generator, values ...T) T { return values[g.IntN(len(values))] }

func (g generator) request() request {
	switch g.IntN(6) {
	case 0:
		return g.write()
	case 1:
		return g.apply()
	case 2:
		return g.odd()
	default:
		return g.read()
	}
}

// read returns a read of stable objects.
func (g generator) read() request {
	path := pick(g,
		"/api/v1/namespaces", "/api/v1/namespaces/default", "/api/v1/namespaces/none", "/api/v1/configmaps",
		"/api/v1/namespaces/kube-system/configmaps", "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node", "/api", "/apis", "/apis/apps/v1", "/version",
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/test.example.com/v1", "/apis/test.example.com/v1/namespaces/default/widgets",
		"/apis/test.example.com/v1/namespaces/default/widgets/w", "/apis/test.example.com/v1/namespaces/default/widgets/w/scale",
		"/apis/apiregistration.k8s.io/v1/apiservices", "/apis/away.example.com/v1", "/apis/away.example.com/v1/things", "/apis/apps/v1/namespaces/default/deployments/none/status",
		"/openapi/v3", "/healthz", "/livez?verbose", "/apis/none/v1/things", "/none")
	query := pick(g, "", "limit=3", "labelSelector=a%3Db", "labelSelector=a%3D%3D%3D", "fieldSelector=metadata.name%3Ddefault",
		"resourceVersion=0", "resourceVersion=1&resourceVersionMatch=Exact", "limit=-1", "pretty=true", "continue=wrong", "labelSelector=kubernetes.io%2Fbootstrapping%3Drbac-defaults&limit=2",
		"labelSelector=a+notin+(b,c),!d", "fieldSelector=metadata.name!%3Ddefault", "fieldSelector=spec.none%3D1", "resourceVersion=0&limit=1", "resourceVersion=-1", "resourceVersionMatch=Exact",
		"includeObject=Metadata", "timeoutSeconds=1&watch=maybe", "watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dnone", "dryRun=All", "shardSelector=x",
		"timeoutSeconds=1&watch=true&resourceVersion=999999999", "watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	if query != "" {
		path += pick(g, "?", "?") + query
	}
	fields := http.Header{"Accept": {pick(g,
		"application/json", "application/vnd.kubernetes.protobuf", "application/yaml", "*/*", "text/plain", "",
		"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
		"application/cbor", "application/cbor, application/json;q=0.5", "application/yaml;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v9;g=meta.k8s.io",
		"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
		"application/vnd.kubernetes.protobuf,application/json")}}
	if g.IntN(3) == 0 {
		fields.Set("Accept-Encoding", "gzip")
	}
	return request{method: pick(g, "GET", "GET", "GET", "HEAD"), path: path, fields: fields}
}

// write returns a write that changes nothing.
func (g generator) write() request {
	name := fmt.Sprintf("c%d", g.IntN(5))
	object := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"a":%q}}`, name, strings.Repeat("x", g.IntN(2000)))
	path := "/api/v1/namespaces/default/configmaps"
	fields := http.Header{"Content-Type": {pick(g, "application/json", "application/json", "application/yaml", "text/html", "application/vnd.kubernetes.protobuf")}}
	switch g.IntN(7) {
	case 4:
		return request{"DELETE", path + "?dryRun=All&labelSelector=none%3Dx", fields, ""}
	case 5: // An unknown field gives a Warning.
		unknown := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"date":{},"data":{"a":"b","a":"c"}}`, name)
		return request{"POST", path + "?dryRun=All&fieldValidation=" + pick(g, "Warn", "Strict", "Ignore"), http.Header{"Content-Type": {"application/json"}}, unknown}
	case 6:
		widget := fmt.Sprintf(`{"apiVersion":"test.example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{"size":%s}}`, name, pick(g, "1", `"a"`, "-1"))
		return request{"POST", "/apis/test.example.com/v1/namespaces/default/widgets?dryRun=All", http.Header{"Content-Type": {"application/json"}}, widget}
	case 0:
		return request{"PUT", path + "/" + name + "?dryRun=All", fields, object}
	case 1:
		return request{"DELETE", path + "/" + name + "?dryRun=All", fields, pick(g, "", `{"kind":"DeleteOptions","apiVersion":"v1"}`, "{")}
	default:
		return request{"POST", path + "?dryRun=All" + pick(g, "", "&fieldManager=a", "&fieldValidation=Strict", "&fieldValidation=Wrong"), fields, object[:len(object)-g.IntN(2)]}
	}
}

// apply returns a patch that changes nothing.
func (g generator) apply() request {
	kind := pick(g, "application/apply-patch+yaml", "application/merge-patch+json", "application/json-patch+json", "application/strategic-merge-patch+json")
	body := pick(g, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c1}\ndata: {b: c}\n", `{"metadata":{"labels":{"a":"b"}}}`,
		`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`, "{")
	path := "/api/v1/namespaces/" + pick(g, "default", "kube-system")
	if g.IntN(2) == 0 {
		path += "/configmaps/" + pick(g, "c1", "kube-root-ca.crt")
	}
	if kind == "application/apply-patch+yaml" && g.IntN(2) == 0 {
		path = "/api/v1/namespaces/default/configmaps/c1"
	}
	return request{"PATCH", path + "?dryRun=All&fieldManager=test" + pick(g, "", "&force=true", "&force=x", "&fieldManager=b"), http.Header{"Content-Type": {kind}}, body}
}

// odd returns a request that is unusual or wrong.
func (g generator) odd() request {
	return pick(g,
		request{method: "OPTIONS", path: "/api/v1/nodes"},
		request{method: "FOO", path: "/api/v1/nodes"},
		request{method: "GET", path: "/api/v1//nodes"},
		request{method: "GET", path: "/api/v1/../v1/nodes"},
		request{method: "GET", path: "/api/v1/namespaces/%2e%2e/pods"},
		request{method: "GET", path: "/api/v1/namespaces/a%2Fb"},
		request{method: "GET", path: "/api/v1/nodes?limit=1;b"},
		request{method: "GET", path: "/api/v1/nodes?%zz"},
		request{method: "POST", path: "/api/v1/nodes", body: strings.Repeat("x", 4<<20)},
		request{method: "GET", path: "/" + strings.Repeat("a", 5000)},
		request{method: "GET", path: "/api/v1/nodes", fields: http.Header{"X-Large": {strings.Repeat("a", 60000)}}},
		request{method: "GET", path: "/api/v1/namespaces/default", fields: http.Header{"Te": {"trailers"}}},
		request{method: "GET", path: "/api/v1/namespaces/default", fields: http.Header{"Impersonate-User": {"nobody"}}},
		request{method: "GET", path: "/api/v1/namespaces/default", fields: http.Header{"Impersonate-Group": {"nobody"}}},
		request{method: "GET", path: "/api/v1/namespaces/default", fields: http.Header{"Impersonate-User": {"a"}, "Impersonate-Group": {"system:masters"}, "Impersonate-Extra-a%2fb": {"c"}, "Impersonate-Uid": {"1"}}},
		request{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", fields: http.Header{"Content-Type": {"application/json"}, "Impersonate-User": {"a"}, "Impersonate-Group": {"b", "c"}, "Impersonate-Extra-X%2fY": {"d", "e"}},
			body: `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`},
		request{method: "POST", path: "/api/v1/namespaces/default/serviceaccounts/default/token?dryRun=All", fields: http.Header{"Content-Type": {"application/json"}}, body: "{}"},
		request{method: "POST", path: "/api/v1/namespaces/default/configmaps?dryRun=All", fields: http.Header{"Content-Type": {"application/cbor"}}, body: "\xd9\xd9\xf7\xa0"},
		request{method: "POST", path: "/api/v1/namespaces/default/configmaps?dryRun=All", fields: http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, body: "\x1f\x8b"},
		request{method: "GET", path: "/api/v1/namespaces/default", fields: http.Header{"Authorization": {"Bearer wrong"}}},
		request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
			fields: http.Header{"Content-Type": {"application/json"}},
			body:   `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
	)
}

// extensions are a CustomResourceDefinition with an object, and an aggregated API whose server is away.
const extensions = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.example.com}
spec:
  group: test.example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, minimum: 0}}}}}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.away.example.com}
spec: {group: away.example.com, version: v1, service: {namespace: default, name: away}, groupPriorityMinimum: 1, versionPriority: 1, insecureSkipTLSVerify: true}
`

// extend adds the extensions to the API until the test ends.
func (c *cluster) extend(t *testing.T) {
	t.Helper()
	succeeds := func(input string, args ...string) bool {
		_, code := c.kubectl(t, c.Servers[0], nil, input, args...)
		return code == 0
	}
	if !succeeds(extensions, "apply", "-f", "-") {
		t.Fatal("kubectl does not create the extensions")
	}
	t.Cleanup(func() {
		c.K1M(t, "kubectl", "--name", c.Name, "--", "delete", "crd/widgets.test.example.com", "apiservice/v1.away.example.com")
	})
	widget := "apiVersion: test.example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: 1}\n"
	for _, server := range c.Servers {
		testcluster.Eventually(t, startTimeout, "an API server knows the extensions", func() bool {
			_, code := c.kubectl(t, server, nil, widget, "apply", "--validate=false", "-f", "-")
			away, _ := c.kubectl(t, server, nil, "", "get", "--raw", "/apis/away.example.com/v1")
			return code == 0 && strings.Contains(strings.ToLower(away), "unavailable")
		})
	}
}

// testDifferences sends random requests to the API servers and through the gateway and compares the answers.
func testDifferences(t *testing.T, c *cluster) {
	count, seed := defaultRequests, defaultSeed
	if text := os.Getenv("GATEWAY_REQUESTS"); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		must(t, err)
	}
	switch text := os.Getenv("GATEWAY_SEED"); text {
	case "":
	case "random":
		seed = rand.Uint64()
	default:
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%d requests; to repeat this test: GATEWAY_SEED=%d", count, seed)
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	c.extend(t)
	clients := map[bool]*http.Client{}
	for _, http2 := range []bool{true, false} {
		tls, err := rest.TLSConfigFor(c.admin(t, c.gateway))
		must(t, err)
		clients[http2] = httpClient(t, tls.Certificates, http2)
		clients[http2].Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = tls.GetClientCertificate
		clients[http2].Transport.(*http.Transport).DisableCompression = true
	}
	different := 0
	for range count {
		r, http2 := g.request(), g.IntN(2) == 0
		if difference := c.compare(t, clients[http2], r); difference != "" {
			t.Errorf("HTTP/2 %t: %v\n%s", http2, r, difference)
			if different++; different == 10 {
				t.Fatal("stopped after ten differences")
			}
		}
	}
}

// comparisons is how often an answer of the gateway must differ from those of the API servers. API servers
// learn of extensions one after the other, and a watch of a second may see a change or not, or end before its initial events.
const comparisons = 6

// compare sends a request to the API servers and through the gateway, and returns how the answers differ.
func (c *cluster) compare(t *testing.T, client *http.Client, r request) string {
	t.Helper()
	difference := ""
	for attempt := range comparisons {
		time.Sleep(time.Duration(attempt) * time.Second)
		through, throughErr := send(t, client, c.gateway, c.Servers, r)
		text := ""
		for _, server := range c.Servers {
			direct, directErr := send(t, client, server, c.Servers, r)
			if (directErr != nil) == (throughErr != nil) && (directErr != nil || reflect.DeepEqual(direct, through)) {
				return ""
			}
			text += fmt.Sprintf("an API server: %v\n", shorten(direct, directErr))
		}
		difference = text + fmt.Sprintf("the gateway:   %v", shorten(through, throughErr))
		t.Logf("attempt %d: %v\n%s", attempt+1, r, difference)
	}
	return difference
}

// shorten returns an answer or an error as text.
func shorten(a answer, err error) string {
	text := fmt.Sprintf("%q %v", fmt.Sprint(a), err)
	return text[:min(len(text), 1500)]
}

// send sends a request and returns its answer without what differs between any two answers.
func send(t *testing.T, client *http.Client, address string, servers []string, r request) (answer, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), r.method, "https://"+address+r.path, strings.NewReader(r.body))
	must(t, err)
	for name, values := range r.fields {
		request.Header[name] = values
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, err
	}
	for _, name := range []string{"Date", "Audit-Id", "Connection"} {
		response.Header.Del(name)
	}
	if strings.Contains(response.Header.Get("Content-Type"), "protobuf;stream=watch") {
		body = nil // it ends with the current revision
	}
	if response.Header.Get("Content-Encoding") == "gzip" && len(body) > 0 {
		// The length depends on where the server flushed.
		response.Header.Del("Content-Length")
		reader, err := gzip.NewReader(bytes.NewReader(body))
		must(t, err)
		body, err = io.ReadAll(reader)
		must(t, err)
	}
	// The length of a dry run's object depends on its times, and that of a cached list on its version.
	if r.method != http.MethodGet && r.method != http.MethodHead || strings.Contains(r.path, "resourceVersion=0") {
		response.Header.Del("Content-Length")
	}
	body = age.ReplaceAll(changing.ReplaceAll(body, []byte("-")), []byte(`"-"`))
	// /api names the API server.
	for _, server := range servers {
		body = bytes.ReplaceAll(body, []byte(server), []byte("SERVER"))
	}
	return answer{response.StatusCode, response.Header, normalize(body)}, nil
}

// normalize removes UIDs, times and versions of objects that dry runs create.
func normalize(body []byte) any {
	var object any
	decoder := json.NewDecoder(bytes.NewReader(body))
	if decoder.Decode(&object) != nil || decoder.More() {
		return string(body)
	}
	strip(object)
	return object
}

func strip(value any) {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range []string{"uid", "creationTimestamp", "time", "resourceVersion", "lastHeartbeatTime", "age", "deletionTimestamp", "cells", "token"} {
			delete(value, name)
		}
		for _, inner := range value {
			strip(inner)
		}
	case []any:
		for _, inner := range value {
			strip(inner)
		}
	}
}
