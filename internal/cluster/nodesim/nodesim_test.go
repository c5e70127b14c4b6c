package nodesim

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestInject(t *testing.T) {
	var path string
	var received map[string]any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, received = r.URL.Path, nil
		if err := json.NewDecoder(r.Body).Decode(&received); err != nil {
			t.Error(err)
		}
		if received["zone"] == "none" {
			http.Error(w, "no such zone", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, `{"nodes":3}`)
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")

	nodes, err := Inject(t.Context(), address, Flap, Request{Count: 3, Zone: "zone-1", Down: "5s"})
	if err != nil || nodes != 3 || path != "/nodes/flap" {
		t.Errorf("Inject() = %d, %v with the path %s; want 3 nodes", nodes, err, path)
	}
	if len(received) != 3 || received["count"] != 3.0 || received["zone"] != "zone-1" || received["down"] != "5s" {
		t.Errorf("node-sim received %v, want only count, zone and down", received)
	}
	if _, err := Inject(t.Context(), address, Stop, Request{Zone: "none"}); err == nil || !strings.Contains(err.Error(), "no such zone") {
		t.Errorf("Inject() with a request that node-sim rejects = %v, want its reason", err)
	}
	server.Close()
	if _, err := Inject(t.Context(), address, Stop, Request{All: true}); err == nil {
		t.Error("Inject() without a server returned no error")
	}
}
