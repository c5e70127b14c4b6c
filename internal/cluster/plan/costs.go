package plan

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Costs are the measured costs of one operation or object: CPU time in microseconds, sizes in
// bytes. All costs must be greater than 0.
type Costs struct {
	// Where describes the machine on which the costs were measured, and the method.
	Where     string         `json:"where"`
	Store     StoreCosts     `json:"store"`
	APIServer APIServerCosts `json:"apiServer"`
	Gateway   GatewayCosts   `json:"gateway"`
	Scheduler SchedulerCosts `json:"scheduler"`
}

// StoreCosts are the costs of mem_etcd.
type StoreCosts struct {
	// UpdateMicros is the CPU time of a write (Txn) in all threads, at a high rate of writes.
	// ApplyMicros is the part of UpdateMicros that the single thread that applies all writes uses.
	UpdateMicros float64 `json:"updateMicros"`
	ApplyMicros  float64 `json:"applyMicros"`
	// ReadMicros is the CPU time of reading one key.
	ReadMicros float64 `json:"readMicros"`
	// SendWatchEventMicros is the CPU time of sending one watch event to one API server.
	SendWatchEventMicros float64 `json:"eventMicros"`
	// Memory of one object in the store.
	NodeBytes  float64 `json:"nodeBytes"`
	LeaseBytes float64 `json:"leaseBytes"`
	PodBytes   float64 `json:"podBytes"`
	EventBytes float64 `json:"eventBytes"`
	// Size of one object in watch events and in the log.
	NodeWire  float64 `json:"nodeWireBytes"`
	LeaseWire float64 `json:"leaseWireBytes"`
	PodWire   float64 `json:"podWireBytes"`
	EventWire float64 `json:"eventWireBytes"`
}

// APIServerCosts are the costs of kube-apiserver.
type APIServerCosts struct {
	LeaseMicros  float64 `json:"leaseUpdateMicros"`
	StatusMicros float64 `json:"nodeStatusPatchMicros"`
	// PodMicros is the CPU time for the whole life of a pod, from creation to deletion.
	PodMicros float64 `json:"podMicros"`
	// CreateEventMicros is the CPU time of creating one Event object.
	CreateEventMicros float64 `json:"eventCreateMicros"`
	// ReceiveWatchEventMicros is the CPU time of receiving one watch event from the store and adding
	// it to the watch cache. Each API server does this for every watch event. DeliverMicros is the
	// CPU time of sending the watch event to one client.
	ReceiveWatchEventMicros float64 `json:"receiveEventMicros"`
	DeliverMicros           float64 `json:"deliverMicros"`
	// CacheEventsMax is the maximum rate, in watch events per second, of the watch cache of one
	// resource. It does not depend on the number of cores, because the cache has one lock.
	CacheEventsMax float64 `json:"cacheEventsPerSecondMax"`
	// BaseBytes is the memory of an API server of an empty cluster. The following costs are the
	// additional memory for one cached object, watch or connection.
	BaseBytes       float64 `json:"baseBytes"`
	NodeBytes       float64 `json:"nodeBytes"`
	LeaseBytes      float64 `json:"leaseBytes"`
	PodBytes        float64 `json:"podBytes"`
	WatchBytes      float64 `json:"watchBytes"`
	ConnectionBytes float64 `json:"connectionBytes"`
}

// GatewayCosts are the costs of kube-gateway, with TLS to clients and to API servers. --calibrate does not
// measure them. docs/plan.md describes how those in costs.json were measured.
type GatewayCosts struct {
	// RequestMicros is the CPU time of forwarding a small request and its answer. It was measured with
	// GETs, and is used for Lease updates too.
	RequestMicros float64 `json:"requestMicros"`
	// DeliverMicros is the CPU time of forwarding one watch event to one client.
	DeliverMicros float64 `json:"deliverMicros"`
	// WatchBytes is the memory of one watch, and ConnectionBytes that of one client connection with
	// its connection to an API server.
	WatchBytes      float64 `json:"watchBytes"`
	ConnectionBytes float64 `json:"connectionBytes"`
}

// SchedulerCosts are the costs of dist-scheduler in a cluster.
type SchedulerCosts struct {
	// PodMicros is the CPU time of scheduling and binding one pod, without replicas.
	PodMicros float64 `json:"podMicros"`
	// CycleMicros is the part of PodMicros that the single thread that schedules all pods uses.
	CycleMicros float64 `json:"cycleMicros"`
	// ReplicaMicros is the additional CPU time per pod if there are replicas. It is the sum over all
	// replicas.
	ReplicaMicros float64 `json:"replicaMicros"`
	NodeBytes     float64 `json:"nodeBytes"`
	PodBytes      float64 `json:"podBytes"`
}

//go:embed costs.json
var storedCosts []byte

// DefaultCosts returns the costs in costs.json, which were measured on a development machine.
func DefaultCosts() Costs {
	var c Costs
	if err := decode(storedCosts, &c); err != nil {
		panic(err) // Cannot happen: a test decodes the file.
	}
	return c
}

// ReadCosts reads a file that [Costs.Write] wrote. If the file was written before there were costs of
// kube-gateway, they are the default costs.
func ReadCosts(path string) (Costs, error) {
	c := Costs{Gateway: DefaultCosts().Gateway}
	data, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("reading costs: %w", err)
	}
	if err := decode(data, &c); err != nil {
		return c, fmt.Errorf("costs in %s: %w; measure them again with `k1m plan --calibrate --costs %s`", path, err, path)
	}
	return c, nil
}

// decode decodes and validates the costs of a JSON file.
func decode(data []byte, c *Costs) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(c); err != nil {
		return err
	}
	return c.validate()
}

// validate returns an error that names the costs that are not greater than 0. A cost of 0 would
// make a resource unlimited.
func (c *Costs) validate() error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	var parts map[string]any
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	var wrong []string
	for part, costs := range parts {
		costs, ok := costs.(map[string]any)
		if !ok {
			continue
		}
		for name, value := range costs {
			if value, ok := value.(float64); !ok || value <= 0 {
				wrong = append(wrong, part+"."+name)
			}
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("these costs must be greater than 0: %s", strings.Join(wrong, ", "))
	}
	return nil
}

// Write writes the costs to a JSON file.
func (c *Costs) Write(path string) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
