package plan

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Costs are what one of each takes, as it was measured: CPU in microseconds, sizes in bytes.
type Costs struct {
	// Where says what they were measured on, and how.
	Where     string         `json:"where"`
	Store     StoreCosts     `json:"store"`
	APIServer APIServerCosts `json:"apiServer"`
	Scheduler SchedulerCosts `json:"scheduler"`
}

// StoreCosts are those of mem_etcd.
type StoreCosts struct {
	// UpdateMicros is a write by a Txn where there are many, all threads, and ApplyMicros what
	// of that one thread does that all writes have to pass.
	UpdateMicros float64 `json:"updateMicros"`
	ApplyMicros  float64 `json:"applyMicros"`
	// ReadMicros is to read one key.
	ReadMicros float64 `json:"readMicros"`
	// EventMicros is to tell one API server of one write.
	EventMicros float64 `json:"eventMicros"`
	// Bytes of memory for one with its Lease, and for a pod and an Event.
	NodeBytes  float64 `json:"nodeBytes"`
	LeaseBytes float64 `json:"leaseBytes"`
	PodBytes   float64 `json:"podBytes"`
	EventBytes float64 `json:"eventBytes"`
	// Wire is what is sent, and logged, of each.
	NodeWire  float64 `json:"nodeWireBytes"`
	LeaseWire float64 `json:"leaseWireBytes"`
	PodWire   float64 `json:"podWireBytes"`
	EventWire float64 `json:"eventWireBytes"`
}

// APIServerCosts are those of kube-apiserver.
type APIServerCosts struct {
	LeaseMicros  float64 `json:"leaseUpdateMicros"`
	StatusMicros float64 `json:"nodeStatusPatchMicros"`
	// PodMicros is the whole life of a pod, from its creation until it is gone.
	PodMicros   float64 `json:"podMicros"`
	EventMicros float64 `json:"eventCreateMicros"`
	// ToldMicros is to take one event from the store into the watch cache, which each API
	// server does for all of them, and DeliverMicros to tell one client of it.
	ToldMicros    float64 `json:"toldMicros"`
	DeliverMicros float64 `json:"deliverMicros"`
	// CacheEventsMax is how many events a second the watch cache of one kind takes,
	// whatever the number of cores: it has one lock.
	CacheEventsMax  float64 `json:"cacheEventsPerSecondMax"`
	BaseBytes       float64 `json:"baseBytes"`
	NodeBytes       float64 `json:"nodeBytes"`
	LeaseBytes      float64 `json:"leaseBytes"`
	PodBytes        float64 `json:"podBytes"`
	WatchBytes      float64 `json:"watchBytes"`
	ConnectionBytes float64 `json:"connectionBytes"`
}

// SchedulerCosts are those of dist-scheduler in a cluster.
type SchedulerCosts struct {
	PodMicros float64 `json:"podMicros"`
	// CycleMicros is what of that one thread does, which all pods have to pass.
	CycleMicros float64 `json:"cycleMicros"`
	// ReplicaMicros is what a pod costs more with replicas, in all of them together.
	ReplicaMicros float64 `json:"replicaMicros"`
	NodeBytes     float64 `json:"nodeBytes"`
	PodBytes      float64 `json:"podBytes"`
}

//go:embed costs.json
var measured []byte

// DefaultCosts are those that were measured where the project is made.
func DefaultCosts() Costs {
	var c Costs
	if err := decode(measured, &c); err != nil {
		panic(err) // A test reads it.
	}
	return c
}

// ReadCosts reads what [Costs.Write] has written.
func ReadCosts(path string) (Costs, error) {
	var c Costs
	data, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("reading costs: %w", err)
	}
	if err := decode(data, &c); err != nil {
		return c, fmt.Errorf("costs in %s: %w; make them with `k1m plan --calibrate --costs %s`", path, err, path)
	}
	return c, nil
}

func decode(data []byte, c *Costs) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(c); err != nil {
		return err
	}
	return c.validate()
}

// validate says which cost is missing: what is free could be had without end.
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
		costs, is := costs.(map[string]any)
		if !is {
			continue
		}
		for name, value := range costs {
			if value, is := value.(float64); !is || value <= 0 {
				wrong = append(wrong, part+"."+name)
			}
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("these have to be more than 0: %s", strings.Join(wrong, ", "))
	}
	return nil
}

// Write writes costs to a file.
func (c *Costs) Write(path string) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
