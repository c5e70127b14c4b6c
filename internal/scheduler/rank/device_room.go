package rank

import (
	"regexp"
	"sync/atomic"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
)

// Indexes of ResourceSlices and ResourceClaims.
const (
	slicesByNode = "k8s-1m.dev/node"
	slicesByPool = "k8s-1m.dev/pool"
	claimsByPool = "k8s-1m.dev/pool"
)

// devicePrefix is the beginning of the driver of a [cache.VolumeRoom] that counts devices in place of volumes. A node without such a
// room has no devices of the driver.
const devicePrefix = "device/"

// manyDevices is what a device counts that several claims may share.
const manyDevices = 1 << 20

// devices count the free devices of nodes. The numbers are upper bounds: allocations that are not in the API server yet do not
// count, and DynamicResources is asked about each node that has enough.
type devices struct {
	slices, claims toolscache.Indexer
	// shared is the number of ResourceSlices whose devices are not those of one node.
	shared atomic.Int64
}

// newDevices returns the counters of the informers of a factory. handler reports changes.
func newDevices(factory informers.SharedInformerFactory, handler toolscache.ResourceEventHandler) (*devices, error) {
	slices, claims := factory.Resource().V1().ResourceSlices().Informer(), factory.Resource().V1().ResourceClaims().Informer()
	if err := addIndexers(slices, toolscache.Indexers{slicesByNode: nodeOfSlice, slicesByPool: poolOfSlice}); err != nil {
		return nil, err
	}
	if err := addIndexers(claims, toolscache.Indexers{claimsByPool: poolsOfClaim}); err != nil {
		return nil, err
	}
	for _, informer := range []toolscache.SharedIndexInformer{slices, claims} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, err
		}
	}
	return &devices{slices: slices.GetIndexer(), claims: claims.GetIndexer()}, nil
}

func nodeOfSlice(object any) ([]string, error) {
	if slice, ok := object.(*resourcev1.ResourceSlice); ok && slice.Spec.NodeName != nil {
		return []string{*slice.Spec.NodeName}, nil
	}
	return nil, nil
}

func poolOfSlice(object any) ([]string, error) {
	if slice, ok := object.(*resourcev1.ResourceSlice); ok {
		return []string{slice.Spec.Driver + "/" + slice.Spec.Pool.Name}, nil
	}
	return nil, nil
}

func poolsOfClaim(object any) ([]string, error) {
	claim, ok := object.(*resourcev1.ResourceClaim)
	if !ok || claim.Status.Allocation == nil {
		return nil, nil
	}
	pools := sets.New[string]()
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		pools.Insert(result.Driver + "/" + result.Pool)
	}
	return pools.UnsortedList(), nil
}

// noteSlice reports that a ResourceSlice was created (by is 1) or deleted (by is -1). An update is both.
func (d *devices) noteSlice(c *cache.Cluster, slice *resourcev1.ResourceSlice, by int64) {
	if slice.Spec.NodeName == nil {
		d.shared.Add(by)
		return
	}
	c.NoteVolumesOnNode(*slice.Spec.NodeName)
}

// noteClaim reports that a claim was created, changed or deleted: the nodes of its devices may have other free devices.
func (d *devices) noteClaim(c *cache.Cluster, claim *resourcev1.ResourceClaim) {
	pools, _ := poolsOfClaim(claim)
	for _, pool := range pools {
		found, err := d.slices.ByIndex(slicesByPool, pool)
		if err != nil {
			c.NoteAllVolumes()
			return
		}
		for _, object := range found {
			if node := object.(*resourcev1.ResourceSlice).Spec.NodeName; node != nil {
				c.NoteVolumesOnNode(*node)
			}
		}
	}
}

// free returns the number of free devices on a node, by driver.
func (d *devices) free(node string) map[string]int {
	found, err := d.slices.ByIndex(slicesByNode, node)
	if err != nil || len(found) == 0 {
		return nil
	}
	free, names, pools := map[string]int{}, sets.New[string](), sets.New[string]()
	for _, object := range found {
		spec := &object.(*resourcev1.ResourceSlice).Spec
		pool := spec.Driver + "/" + spec.Pool.Name
		pools.Insert(pool)
		for i := range spec.Devices {
			names.Insert(pool + "/" + spec.Devices[i].Name)
			if shared := spec.Devices[i].AllowMultipleAllocations; shared != nil && *shared {
				free[spec.Driver] += manyDevices
			} else {
				free[spec.Driver]++
			}
		}
	}
	for pool := range pools {
		claims, err := d.claims.ByIndex(claimsByPool, pool)
		if err != nil {
			continue
		}
		for _, object := range claims {
			subtractAllocated(free, names, pool, object.(*resourcev1.ResourceClaim))
		}
	}
	return free
}

// subtractAllocated subtracts the devices of a pool that are allocated to a claim and that are among names.
func subtractAllocated(free map[string]int, names sets.Set[string], pool string, claim *resourcev1.ResourceClaim) {
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		exclusive := result.ShareID == nil && (result.AdminAccess == nil || !*result.AdminAccess)
		if exclusive && result.Driver+"/"+result.Pool == pool && names.Has(pool+"/"+result.Device) {
			free[result.Driver]--
		}
	}
}

// addRequests adds the devices that a claim requests, where the driver is known.
func (n *needs) addRequests(d *devices, fw framework.Framework, claim *resourcev1.ResourceClaim) {
	if d == nil || d.shared.Load() > 0 || claim.Status.Allocation != nil {
		return
	}
	for i := range claim.Spec.Devices.Requests {
		request := claim.Spec.Devices.Requests[i].Exactly
		if request == nil || request.AdminAccess != nil && *request.AdminAccess {
			continue
		}
		class, err := fw.SharedDRAManager().DeviceClasses().Get(request.DeviceClassName)
		if err != nil {
			continue
		}
		count := int64(1)
		if request.AllocationMode == resourcev1.DeviceAllocationModeExactCount {
			count = max(count, request.Count)
		}
		if driver := driverOf(class.Spec.Selectors); driver != "" {
			n.conditions.add(devicePrefix+driver, int(min(count, manyDevices)))
		}
	}
}

// driverSelector is a selector that selects the devices of one driver, as the documentation of drivers recommends it.
var driverSelector = regexp.MustCompile(`^\s*device\.driver\s*==\s*["']([a-z0-9.-]+)["']\s*$`)

// driverOf returns the driver whose devices selectors select; "" if it is not known. All selectors must match.
func driverOf(selectors []resourcev1.DeviceSelector) string {
	for i := range selectors {
		if cel := selectors[i].CEL; cel != nil {
			if match := driverSelector.FindStringSubmatch(cel.Expression); match != nil {
				return match[1]
			}
		}
	}
	return ""
}
