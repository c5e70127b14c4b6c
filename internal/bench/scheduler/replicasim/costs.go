package replicasim

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Costs are the CPU times of operations of the real code, and the sizes of its messages in bytes. In
// JSON, times are in nanoseconds.
type Costs struct {
	// Machine describes the machine on which the costs were measured.
	Machine string `json:"machine"`
	// Message is the part of the cost of a message that does not depend on its size, at each end.
	Message               time.Duration `json:"messageNanos"`
	TransportNanosPerByte float64       `json:"transportNanosPerByte"`
	EncodeNanosPerByte    float64       `json:"encodeNanosPerByte"`
	DecodeNanosPerByte    float64       `json:"decodeNanosPerByte"`
	// The size of a query is QueryBytes, plus the size of the pod, plus MemberBytes for each replica to
	// which the query is forwarded.
	QueryBytes  int `json:"questionBytes"`
	MemberBytes int `json:"memberBytes"`
	// The size of an answer is AnswerBytes, plus GroupBytes for each node group, plus OfferBytes for
	// each offer.
	AnswerBytes int `json:"answerBytes"`
	GroupBytes  int `json:"groupBytes"`
	OfferBytes  int `json:"offerBytes"`
	// Summarize is the cost of computing the answer of a replica. Fold is the cost of combining the
	// answers of several replicas into one. Merge is the cost for the leader of preparing the combined
	// answer, before it chooses nodes. Choose is the cost of choosing a node for one pod.
	Summarize Linear        `json:"summarize"`
	Fold      Linear        `json:"fold"`
	Merge     Linear        `json:"merge"`
	Choose    time.Duration `json:"chooseNanos"`
	// ChooseGroup is the additional cost of choosing a node, per node group.
	ChooseGroup time.Duration `json:"chooseGroupNanos"`

	PodBytes         int           `json:"podBytes"`
	PodEncode        time.Duration `json:"podEncodeNanos"`
	PodDecode        time.Duration `json:"podDecodeNanos"`
	ReservationBytes int           `json:"reservationBytes"`
	AckBytes         int           `json:"ackBytes"`
	// Cycle is the cost of a scheduling cycle with its bind, without network.
	Cycle time.Duration `json:"cycleNanos"`
	// Reserve is the cost of a reservation at the owner of the node. Bind is the cost of the API
	// requests for a pod, and Watch that of the watch events of a pod. These three costs come from
	// profiles of a real cluster; Calibrate does not measure them.
	Reserve time.Duration `json:"reserveNanos"`
	Bind    time.Duration `json:"bindNanos"`
	Watch   time.Duration `json:"watchNanos"`
}

// Linear is a cost that depends linearly on the number of groups and the number of offers.
type Linear struct {
	Base  time.Duration `json:"baseNanos"`
	Group time.Duration `json:"groupNanos"`
	Offer float64       `json:"offerNanos"`
}

func (l Linear) of(groups, offers int) time.Duration {
	return l.Base + time.Duration(groups)*l.Group + time.Duration(float64(offers)*l.Offer)
}

func (c *Costs) summarize(groups, offers int) time.Duration {
	return c.Summarize.of(groups, groups*offers)
}

func (c *Costs) fold(groups, offers int) time.Duration { return c.Fold.of(groups, offers) }

func (c *Costs) merge(groups, offers int) time.Duration { return c.Merge.of(groups, offers) }

func (c *Costs) choose(groups int) time.Duration {
	return c.Choose + time.Duration(groups)*c.ChooseGroup
}

//go:embed costs.json
var stored []byte

// StoredCosts returns the costs that are stored in the repository.
func StoredCosts() Costs {
	var c Costs
	if err := json.Unmarshal(stored, &c); err != nil {
		panic(fmt.Sprintf("replicasim: reading the stored costs: %v", err))
	}
	return c
}

// ReadCosts reads a file that a calibration wrote.
func ReadCosts(file string) (Costs, error) {
	var c Costs
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, fmt.Errorf("reading costs: %w", err)
	}
	return c, nil
}
