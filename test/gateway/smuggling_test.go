package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// quiet is the time without an answer after which a connection counts as answered. latest is that time if an answer seemed to
	// be missing, because the machine is busy.
	quiet, latest = 700 * time.Millisecond, 30 * time.Second
	// upgradeQuiet is that time for the two connections that are upgraded.
	upgradeQuiet = 5 * time.Second
	// parallelCases is the number of cases that run at the same time.
	parallelCases = 32
)

// smuggling is a request of HTTP/1.1 that two readers could understand differently. "{id}" in it becomes a name of the
// case with four letters, so that the requests of all cases can be told apart.
type smuggling struct {
	name, raw string
	// want are the requests that the API server may receive (method, URI and body), in this order. It may also receive
	// only the first of them, or nothing.
	want []string
}

// harmless are cases that the Go HTTP library, and so kube-apiserver, refuses, but the gateway forwards as a correct
// request.
var harmless = []string{"chunk size with many zeros", "end of line before the request"}

// get is a complete request.
const get = "GET /{id} HTTP/1.1\r\nHost: a\r\n\r\n"

// next is another complete request.
const next = "GET /{id}/next HTTP/1.1\r\nHost: a\r\n\r\n"

// smuggled is a request within another one. It must never be received.
const smuggled = "GET /{id}/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

// post returns a POST request with these lines in its header.
func post(lines, body string) string {
	return "POST /{id} HTTP/1.1\r\nHost: a\r\n" + lines + "\r\n" + body
}

func chunked(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }

// lengths are requests whose length is given twice, or in a wrong way.
func lengths() []smuggling {
	s := smuggled
	cl := func(value string) string { return "Content-Length: " + value + "\r\n" }
	te := "Transfer-Encoding: chunked\r\n"
	return []smuggling{
		{"CL.TE, end of chunks first", post(cl(fmt.Sprint(5+len(s)))+te, "0\r\n\r\n"+s), []string{`POST /{id} ""`}},
		{"CL.TE, chunk longer than the length", post(cl("4")+te, chunked("hello")), []string{`POST /{id} "hello"`}},
		{"CL.TE, chunk shorter than the length", post(cl("50")+te, chunked("hello")), []string{`POST /{id} "hello"`}},
		{"TE.CL", post(te+cl("4"), fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(s), s)), []string{`POST /{id} "` + "GET /{id}/smuggled HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" + `"`}},
		{"two equal lengths", post(cl("5")+cl("5"), "hello"), []string{`POST /{id} "hello"`}},
		{"two lengths", post(cl("0")+cl(fmt.Sprint(len(s))), s), nil},
		{"two lengths in one field", post(cl("0, "+fmt.Sprint(len(s))), s), nil},
		{"the same length twice in one field", post(cl("5, 5"), "hello"), []string{`POST /{id} "hello"`}},
		{"length with a sign", post(cl("+5"), "hello"), nil},
		{"negative length", post(cl("-5"), s), nil},
		{"length in hexadecimal", post(cl("0x5"), "hello"), nil},
		{"length with a blank", post("Content-Length: 5 5\r\n", "hello"), nil},
		{"length with a decimal point", post(cl("5.0"), "hello"), nil},
		{"length of 2^64+5", post(cl("18446744073709551621"), "hello"), nil},
		{"length of 2^63", post(cl("9223372036854775808"), "hello"), nil},
		{"empty length", post("Content-Length:\r\n", s), nil},
		{"length with leading zeros", post(cl("0000000005"), "hello"), []string{`POST /{id} "hello"`}},
		{"GET with a body", "GET /{id} HTTP/1.1\r\nHost: a\r\nContent-Length: " + fmt.Sprint(len(s)) + "\r\n\r\n" + s,
			[]string{`GET /{id} "` + "GET /{id}/smuggled HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" + `"`}},
		{"length of HTTP/1.0 with chunks", "POST /{id} HTTP/1.0\r\nHost: a\r\n" + te + "\r\n" + "0\r\n\r\n" + s, nil},
	}
}

// encodings are requests whose Transfer-Encoding is hidden from one of two readers.
func encodings() []smuggling {
	cl := "Content-Length: 5\r\n"
	var cases []smuggling
	for _, field := range []string{
		"Transfer-Encoding: xchunked", "Transfer-Encoding : chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding: chunked, identity",
		"Transfer-Encoding: identity", "Transfer-Encoding: identity, chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
		"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: \"chunked\"",
		"Transfer-Encoding: 'chunked'", "Transfer-Encoding: chunked;q=1", "Transfer-Encoding: chunke\x64\x00", "Transfer-Encoding: CHUNKED",
		"Transfer-Encoding: \x0bchunked", "Transfer-Encoding: \x0cchunked", "Transfer-Encoding: chunked\x0b", "Transfer_Encoding: chunked",
		"X: y\nTransfer-Encoding: chunked", "X: y\rTransfer-Encoding: chunked", "Transfer-Encoding\n: chunked", "Transfer-Encoding:\r\n chunked",
		" Transfer-Encoding: chunked", "\tTransfer-Encoding: chunked", "Transfer-Encoding: chunked,", "Transfer-Encoding: ,chunked",
		"Transfer-Encoding: chunked, chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding\xa0: chunked",
		"\x00Transfer-Encoding: chunked", "Transfer-Encoding: \u212aunked",
	} {
		name := fmt.Sprintf("%q", field)
		// As chunks, the body ends at once and a request follows; by its length, it has five bytes and the request follows too,
		// which only a reader of the chunks would take for a part of the body.
		raw := post(cl+field+"\r\n", "0\r\n\r\n"+next)
		cases = append(cases, smuggling{name + " with a length", raw, []string{`POST /{id} "" or "0\r\n\r\n"`, `GET /{id}/next ""`}})
		cases = append(cases, smuggling{name, post(field+"\r\n", "5\r\nhello\r\n0\r\n\r\n"), []string{`POST /{id} "" or "hello"`}})
	}
	return cases
}

// chunks are requests with damaged chunks.
func chunks() []smuggling {
	te := "Transfer-Encoding: chunked\r\n"
	of := func(name, body string, want ...string) smuggling { return smuggling{name, post(te, body), want} }
	hello := `POST /{id} "hello"`
	return []smuggling{
		of("chunk size with an extension", "5;a=b\r\nhello\r\n0\r\n\r\n", hello),
		of("chunk size with a quoted extension", "5;a=\"\r\n\"\r\nhello\r\n0\r\n\r\n"),
		of("chunk size with a bare LF in its extension", "5;a\nhello\r\n0\r\n\r\n"),
		of("chunk size with a bare CR in its extension", "5;a\rb\r\nhello\r\n0\r\n\r\n"),
		of("chunk size ended by LF", "5\nhello\r\n0\r\n\r\n"),
		of("chunk ended by LF", "5\r\nhello\n0\r\n\r\n"),
		of("chunk without an end", "5\r\nhello0\r\n\r\n"),
		of("chunk size of 2^64+5", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
		of("chunk size of 2^64-1", "ffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
		of("chunk size with many zeros", strings.Repeat("0", 40)+"5\r\nhello\r\n0\r\n\r\n", hello),
		of("chunk size with a prefix", "0x5\r\nhello\r\n0\r\n\r\n"),
		of("negative chunk size", "-5\r\nhello\r\n0\r\n\r\n"),
		of("chunk size with a sign", "+5\r\nhello\r\n0\r\n\r\n"),
		of("chunk size after a blank", " 5\r\nhello\r\n0\r\n\r\n"),
		of("chunk size before a blank", "5 \r\nhello\r\n0\r\n\r\n", hello),
		of("chunk size with an underscore", "0_5\r\nhello\r\n0\r\n\r\n"),
		of("no chunk size", "\r\nhello\r\n0\r\n\r\n"),
		of("chunk shorter than its size", "ff\r\nhello\r\n0\r\n\r\n"+smuggled),
		of("extensions of 64 KiB", "5;"+strings.Repeat("a", 64<<10)+"\r\nhello\r\n0\r\n\r\n"),
		of("100,000 chunks with extensions", strings.Repeat("1;a=b\r\nx\r\n", 100_000)+"0\r\n\r\n"),
		of("trailers that claim a user", "5\r\nhello\r\n0\r\nX-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n\r\n", hello),
		of("trailers that give a length", "5\r\nhello\r\n0\r\nContent-Length: 0\r\nTransfer-Encoding: identity\r\n\r\n", hello),
		of("a request after the last chunk", "0\r\n\r\n"+next, `POST /{id} ""`, `GET /{id}/next ""`),
		of("a request in the trailers", "0\r\n"+smuggled, `POST /{id} ""`),
	}
}

// lines are requests with unusual lines.
func lines() []smuggling {
	header := func(line string) string { return "GET /{id} HTTP/1.1\r\nHost: a\r\n" + line + "\r\n\r\n" }
	one := []string{`GET /{id} ""`}
	return []smuggling{
		{"bare LF everywhere", "GET /{id} HTTP/1.1\nHost: a\n\n", one},
		{"bare LF after a field", "GET /{id} HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", one},
		{"bare CR in a field", header("X: a\rX-Remote-User: admin"), nil},
		{"folded field", header("X: a\r\n X-Remote-User: admin"), one},
		{"first field is folded", "GET /{id} HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n", one},
		{"NUL in a field", header("X: a\x00b"), nil},
		{"blank before the colon", header("X : a"), nil},
		{"no colon", header("X"), nil},
		{"empty name", header(": a"), nil},
		{"two hosts", header("Host: b"), one},
		{"no host", "GET /{id} HTTP/1.1\r\n\r\n", one},
		{"host with a path", "GET /{id} HTTP/1.1\r\nHost: a/b\r\n\r\n", one},
		{"another host in the URI", "GET https://b/{id} HTTP/1.1\r\nHost: a\r\n\r\n", one},
		{"HTTP/1.2", "GET /{id} HTTP/1.2\r\nHost: a\r\n\r\n", nil},
		{"HTTP/0.9", "GET /{id}\r\n\r\n", nil},
		{"HTTP/2 by its name", "GET /{id} HTTP/2.0\r\nHost: a\r\n\r\n", nil},
		{"two blanks", "GET  /{id} HTTP/1.1\r\nHost: a\r\n\r\n", nil},
		{"tab as a separator", "GET\t/{id}\tHTTP/1.1\r\nHost: a\r\n\r\n", nil},
		{"blank in the URI", "GET /{id} /x HTTP/1.1\r\nHost: a\r\n\r\n", nil},
		{"LF in the URI", "GET /{id}\n/x HTTP/1.1\r\nHost: a\r\n\r\n", nil},
		{"control characters in the URI", "GET /{id}\x01 HTTP/1.1\r\nHost: a\r\n\r\n", nil},
		{"encoded end of line in the URI", "GET /{id}%0d%0aX-Remote-User:%20admin HTTP/1.1\r\nHost: a\r\n\r\n", []string{`GET /{id}%0d%0aX-Remote-User:%20admin ""`}},
		{"fragment in the URI", "GET /{id}#/smuggled HTTP/1.1\r\nHost: a\r\n\r\n", []string{`GET /{id} "" or "#/smuggled"`}},
		{"end of line before the request", "\r\n\r\n" + get, one},
		{"method with an end of line", "GET\r\n/{id} HTTP/1.1\r\nHost: a\r\n\r\n", nil},
		{"lower-case method", "get /{id} HTTP/1.1\r\nHost: a\r\n\r\n", []string{`get /{id} ""`}},
		{"pipelined requests", get + next, []string{`GET /{id} ""`, `GET /{id}/next ""`}},
		{"Expect with a body", post("Expect: 100-continue\r\nContent-Length: 5\r\n", "hello"), []string{`POST /{id} "hello"`}},
		{"unknown Expect", post("Expect: magic\r\nContent-Length: 5\r\n", "hello"), []string{`POST /{id} "hello"`}},
		{"CONNECT", "CONNECT {id}:443 HTTP/1.1\r\nHost: a\r\n\r\n" + next, []string{`GET /{id}/next ""`}},
		{"field of 2 MiB", header("X: " + strings.Repeat("a", 2<<20)), nil},
		{"50,000 fields", header(strings.Repeat("X: a\r\n", 50_000) + "Y: b"), nil},
		{"100 Host fields", header(strings.Repeat("Host: a\r\n", 100) + "Y: b"), one},
		{"upgrade to h2c", header("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA") + next,
			[]string{`GET /{id} ""`, `GET /{id}/next ""`}},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + smuggled, nil},
	}
}

// claims are requests that claim or remove an identity. alice is the only user that the API server may see.
func claims() []smuggling {
	header := func(lines ...string) string {
		return "GET /{id} HTTP/1.1\r\nHost: a\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	one := []string{`GET /{id} ""`}
	var cases []smuggling
	for _, lines := range [][]string{
		{"X-Remote-User: admin"}, {"x-remote-user: admin"}, {"X-REMOTE-USER: admin", "X-Remote-Group: system:masters"},
		{"Connection: X-Remote-User"}, {"Connection: close, X-Remote-User, X-Remote-Group"}, {"Connection: x-remote-extra-authentication.kubernetes.io%2Fcredential-id"},
		{"Connection: X-Remote-User", "X-Remote-User: admin"}, {"Connection: X-Remote-User", "Connection: X-Remote-Group"},
		{"Proxy-Connection: X-Remote-User"}, {"Connection: Upgrade, X-Remote-User", "Upgrade: websocket"},
		{"X_Remote_User: admin"}, {"X-Remote-User : admin"}, {"X-Remote-User\t: admin"}, {"X-Remote-User:admin"}, {" X-Remote-User: admin"},
		{"X: a\n\tX-Remote-User: admin"}, {"X: a\nX-Remote-User: admin"}, {"X: a\r\n\r X-Remote-User: admin"},
		{"X-Remote-Extra-Scopes: all"}, {"X-Remote-Extra-authentication.kubernetes.io%2fcredential-id: X509SHA256=00"}, {"X-Remote-Uid: 0"},
		{"X-Forwarded-For: 10.0.0.1"}, {"X-Real-Ip: 10.0.0.1"}, {"X-Forwarded-Client-Cert: admin"},
	} {
		cases = append(cases, smuggling{fmt.Sprintf("claim %q", strings.Join(lines, "|")), header(lines...), one})
	}
	return cases
}

// TestSmuggling sends requests that a proxy and an API server could understand differently. The API server must receive
// nothing, or exactly what was meant, with the identity of the client. It must not receive what it would refuse without
// the gateway.
func TestSmuggling(t *testing.T) {
	s := newStandalone(t, nil)
	user := s.user(t, "alice", "dev")
	all := slices.Concat(lengths(), encodings(), chunks(), lines(), claims())
	answers := make([]string, len(all))
	inParallel(len(all), func(i int) {
		answers[i] = all[i].send(t, s, user, caseName('c', i), caseName('d', i), quiet)
	})
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) {
			var found remarks
			if c.judge(&found, s, caseName('c', i), caseName('d', i), answers[i]); len(found) > 0 {
				t.Logf("repeated because an answer may be late: %q", found)
				again := c.send(t, s, user, caseName('r', i), caseName('s', i), latest)
				c.judge(t, s, caseName('r', i), caseName('s', i), again)
			}
		})
	}
	s.alive(t)
	t.Logf("%d cases", len(all))
}

// send sends a case with a name through the gateway, and with another one to the API server. It returns the gateway's answers, until
// there is none for a time.
func (c smuggling) send(t *testing.T, s *standalone, user tls.Certificate, through, direct string, quiet time.Duration) string {
	t.Helper()
	answers := exchange(t, s.gateway, user, strings.ReplaceAll(c.raw, "{id}", through), quiet)
	exchange(t, s.address, tls.Certificate{}, strings.ReplaceAll(c.raw, "{id}", direct), quiet)
	return answers
}

// judge compares what the API server received through the gateway with what it may receive, and with what it received directly.
func (c smuggling) judge(t reporter, s *standalone, through, direct, answers string) {
	t.Helper()
	requests, accepted := complete(s.of(through)), complete(s.of(direct))
	check(t, c, through, requests, answers)
	if len(requests) > len(accepted) && !slices.Contains(harmless, c.name) {
		t.Errorf("%.300q: the API server received %v, but would accept only %v of it directly", c.raw, requests, accepted)
	}
}

// reporter is a test, or remarks that do not fail it.
type reporter interface {
	Helper()
	Errorf(format string, values ...any)
}

// remarks are what would fail a test.
type remarks []string

// Helper does nothing.
func (*remarks) Helper() {}

// Errorf adds a remark.
func (r *remarks) Errorf(format string, values ...any) {
	*r = append(*r, fmt.Sprintf(format, values...))
}

// caseName returns a name of four letters.
func caseName(kind byte, number int) string { return fmt.Sprintf("%c%03d", kind, number) }

// inParallel calls a function with all numbers below count, of which it runs some at the same time.
func inParallel(count int, call func(int)) {
	var all sync.WaitGroup
	slots := make(chan struct{}, parallelCases)
	for i := range count {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			call(i)
		})
	}
	all.Wait()
}

// exchange sends bytes on a connection of HTTP/1.1 and reads until it is closed, or quiet for a time. It returns what it read.
func exchange(t *testing.T, address string, user tls.Certificate, raw string, quiet time.Duration) string {
	t.Helper()
	conn := dial(t, address, "http/1.1", user)
	must(t, conn.SetWriteDeadline(time.Now().Add(startTimeout)))
	// A server that refuses a request may close the connection before it has read all of it.
	_, _ = io.WriteString(conn, raw)
	var answers strings.Builder
	buffer := make([]byte, 64<<10)
	for {
		must(t, conn.SetReadDeadline(time.Now().Add(quiet)))
		n, err := conn.Read(buffer)
		answers.Write(buffer[:n])
		if err != nil {
			break
		}
	}
	_ = conn.Close()
	return answers.String()
}

// complete leaves out requests whose body ended with an error: an API server does not execute them.
func complete(requests []received) []received {
	return slices.DeleteFunc(requests, func(r received) bool { return r.Err != nil })
}

// check compares what the API server received with what it may receive.
func check(t reporter, c smuggling, id string, requests []received, answers string) {
	t.Helper()
	if len(requests) > len(c.want) {
		t.Errorf("%q: the API server received %v, want at most %q; answers %.300q", c.raw[:min(len(c.raw), 300)], requests, c.want, answers)
		return
	}
	for i, request := range requests {
		if want := strings.ReplaceAll(c.want[i], "{id}", id); !meets(request, want) {
			t.Errorf("%q: the API server received %v, want %s; answers %.300q", c.raw[:min(len(c.raw), 300)], request, want, answers)
		}
		checkIdentity(t, request)
	}
	if len(requests) > 0 && len(answers) == 0 {
		t.Errorf("%q: no answer, but the API server received %v", c.raw[:min(len(c.raw), 300)], requests)
	}
}

// meets compares a request with a text like `POST /path "body"`. A text may name two bodies.
func meets(request received, want string) bool {
	head, bodies, _ := strings.Cut(want, ` "`)
	if request.Method+" "+request.URI != head {
		return false
	}
	for _, body := range strings.Split(strings.TrimSuffix(bodies, `"`), `" or "`) {
		if fmt.Sprintf("%q", request.Body) == `"`+body+`"` {
			return true
		}
	}
	return false
}

// checkIdentity fails the test unless a request came over the front proxy's connection for alice, with nothing that a
// client could have added.
func checkIdentity(t reporter, request received) {
	t.Helper()
	allowed := map[string]bool{
		"X-Remote-User": true, "X-Remote-Group": true, "X-Forwarded-For": true,
		"X-Remote-Extra-Authentication.kubernetes.io%2fcredential-Id": true,
	}
	for name := range request.Fields {
		if strings.HasPrefix(name, "X-Remote") || strings.HasPrefix(name, "X-Forwarded") || strings.HasPrefix(name, "X-Real") {
			if !allowed[name] && !strings.EqualFold(name, "X-Remote-Extra-authentication.kubernetes.io%2fcredential-id") {
				t.Errorf("%v has the field %s: %q", request, name, request.Fields[name])
			}
		}
	}
	user, group, address := request.Fields["X-Remote-User"], request.Fields["X-Remote-Group"], request.Fields["X-Forwarded-For"]
	if request.Peer != frontProxyName || !slices.Equal(user, []string{"alice"}) || !slices.Equal(group, []string{"dev"}) || !slices.Equal(address, []string{"127.0.0.1"}) {
		t.Errorf("%v: peer %q, user %q, groups %q, address %q", request, request.Peer, user, group, address)
	}
}

// TestFailedUpgrade checks that nothing reaches the API server unchecked after an upgrade that failed, and everything
// after one that succeeded.
func TestFailedUpgrade(t *testing.T) {
	s := newStandalone(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "succeeds") {
			http.Error(w, "refused", http.StatusForbidden)
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	})
	user := s.user(t, "alice", "dev")
	upgrade := func(path string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n"
	}
	t.Run("a request that follows a failed upgrade is checked", func(t *testing.T) {
		claim := "GET /fails/next HTTP/1.1\r\nHost: a\r\nX-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n\r\n"
		answers := exchange(t, s.gateway, user, upgrade("/fails")+claim, upgradeQuiet)
		for _, request := range s.of("/fails") {
			checkIdentity(t, request)
		}
		if got := s.of("/fails"); len(got) == 0 || !strings.HasPrefix(answers, "HTTP/1.1 403") {
			t.Errorf("received %v, answers %q", got, answers)
		}
	})
	t.Run("bytes after a successful upgrade reach the API server unchanged", func(t *testing.T) {
		text := "GET / HTTP/1.1\r\nConnection: X-Remote-User\r\n\r\n\x00\x01"
		answers := exchange(t, s.gateway, user, upgrade("/succeeds")+text, upgradeQuiet)
		head, echo, _ := strings.Cut(answers, "\r\n\r\n")
		if !strings.HasPrefix(head, "HTTP/1.1 101") || echo != text {
			t.Errorf("answers %q, want status 101 and %q", answers, text)
		}
	})
	t.Run("a tunnel ends when the API server ends it", func(t *testing.T) {
		conn := dial(t, s.gateway, "http/1.1", user)
		_, err := io.WriteString(conn, upgrade("/succeeds/short"))
		must(t, err)
		must(t, conn.CloseWrite())
		must(t, conn.SetReadDeadline(time.Now().Add(startTimeout)))
		if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("the tunnel did not end: %v", err)
		}
	})
}
