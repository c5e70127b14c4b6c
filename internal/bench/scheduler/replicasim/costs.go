package replicasim

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Costs are what the real code takes of CPU time and bytes. In JSON times are in
// nanoseconds.
type Costs struct {
	// Machine says where they were measured.
	Machine string `json:"machine"`
	// Message is a message at either end, apart from its bytes.
	Message               time.Duration `json:"messageNanos"`
	TransportNanosPerByte float64       `json:"transportNanosPerByte"`
	EncodeNanosPerByte    float64       `json:"encodeNanosPerByte"`
	DecodeNanosPerByte    float64       `json:"decodeNanosPerByte"`
	// A question has bytes for each replica that it is handed on to, and the pod.
	QuestionBytes int `json:"questionBytes"`
	MemberBytes   int `json:"memberBytes"`
	// An answer has bytes for each group, and each offer.
	AnswerBytes int `json:"answerBytes"`
	GroupBytes  int `json:"groupBytes"`
	OfferBytes  int `json:"offerBytes"`
	// What shards find, what is folded on the way, what the leader merges: each has a
	// cost for a group, and one for an offer. Choose is for one pod.
	Summarize Linear        `json:"summarize"`
	Fold      Linear        `json:"fold"`
	Merge     Linear        `json:"merge"`
	Choose    time.Duration `json:"chooseNanos"`
	// ChooseGroup is for each group beside.
	ChooseGroup time.Duration `json:"chooseGroupNanos"`

	PodBytes         int           `json:"podBytes"`
	PodEncode        time.Duration `json:"podEncodeNanos"`
	PodDecode        time.Duration `json:"podDecodeNanos"`
	ReservationBytes int           `json:"reservationBytes"`
	AckBytes         int           `json:"ackBytes"`
	// Cycle is a scheduling cycle with its bind, without what goes over the network.
	Cycle time.Duration `json:"cycleNanos"`
	// Reserve is an owner's part of a reservation, Bind the requests to the API server
	// that a pod needs, Watch what it takes to hear of one pod: from profiles of a real
	// cluster, so Calibrate leaves them.
	Reserve time.Duration `json:"reserveNanos"`
	Bind    time.Duration `json:"bindNanos"`
	Watch   time.Duration `json:"watchNanos"`
}

// Linear is a cost by groups and offers.
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

// StoredCosts are those in the repository.
func StoredCosts() Costs {
	var c Costs
	if err := json.Unmarshal(stored, &c); err != nil {
		panic(fmt.Sprintf("shardsim: the stored costs: %v", err))
	}
	return c
}

// ReadCosts reads costs that a calibration has written.
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
