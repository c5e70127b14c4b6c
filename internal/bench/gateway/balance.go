package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	apiServers = 3
	// victim is the API server that is killed. The components of the cluster use the first.
	victim = 1
	// countInterval is the time between two counts of the watches. A page of an API server costs it 0.1 s of
	// CPU.
	countInterval = 3 * time.Second
	// changeInterval is the time between two changes of the watched object. Watches end after an event.
	changeInterval = time.Second
)

// balance kills an API server, and measures how even the watches of informers are some time after its return.
func (l *lab) balance(ctx context.Context) error {
	table := l.Result.Table("One of three API servers killed and back, with informers", "front", "clients", "watches before", "ready again, s",
		"watches "+l.options.Settle.D.String()+" later", "most ÷ least", "lists of clients of the killed server", "of others")
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: smallObject, Namespace: namespace}}
	template.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "pause"}}
	if _, err := l.Client.CoreV1().PodTemplates(namespace).Create(ctx, template, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a PodTemplate: %w", err)
	}
	for _, name := range l.names(direct, haproxy, kubeGateway) {
		err := l.target.with(ctx, name, func(f *front) error {
			m, err := l.measureBalance(ctx, f)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			ratio := mostToLeast(m.after)
			table.Add(name, l.options.Informers.N, counts(m.before), m.ready.Seconds(), counts(m.after), ratio, m.relistsOfVictim, m.relistsOfOthers)
			if name == kubeGateway {
				l.Judge(limitBalance, ratio, l.options.Informers.N, "")
				l.Judge(limitRelists, float64(m.relistsOfOthers), l.options.Informers.N, "")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// balanced is what happened after an API server was killed.
type balanced struct {
	before, after []int // watches by API server
	ready         time.Duration
	// Lists of the informers that were connected to the killed API server, and of the others.
	relistsOfVictim, relistsOfOthers int
}

// measureBalance starts informers, kills an API server, and counts watches and lists until the load should be even.
func (l *lab) measureBalance(ctx context.Context, f *front) (m balanced, err error) {
	running, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() { l.changeTemplate(running) })
	informers, err := l.startInformers(running, f, l.options.Informers.N)
	if err != nil {
		return m, err
	}
	if err := experiment.Sleep(ctx, countInterval); err != nil {
		return m, err
	}
	if m.before, err = l.watches(ctx); err != nil {
		return m, err
	}
	group.Go(func() { l.plotWatches(running, f.name) })
	for _, i := range informers {
		i.mark()
	}
	killed := time.Now()
	if err := l.signalServer(victim, syscall.SIGKILL); err != nil {
		return m, err
	}
	if err := l.awaitServer(ctx, victim); err != nil {
		return m, err
	}
	ready := time.Now()
	m.ready = ready.Sub(killed)
	task := l.Display.Task(f.name+": watches move", 0)
	if err := experiment.Sleep(ctx, l.options.Settle.D); err != nil {
		task.Interrupt()
		return m, err
	}
	if m.after, err = l.watches(ctx); err != nil {
		return m, err
	}
	m.relistsOfVictim, m.relistsOfOthers = relists(informers, ready)
	task.Done(counts(m.after))
	return m, nil
}

// changeTemplate changes the watched object until ctx ends.
func (l *lab) changeTemplate(ctx context.Context) {
	for experiment.Sleep(ctx, changeInterval) == nil {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"k1m/update":"%d"}}}`, time.Now().UnixNano())
		_, err := l.Client.CoreV1().PodTemplates(namespace).Patch(ctx, smallObject, types.MergePatchType, patch, metav1.PatchOptions{})
		if ctx.Err() == nil {
			l.Result.Errors.Add("update", err)
		}
	}
}

// watches returns the number of watches of PodTemplates by API server.
func (l *lab) watches(ctx context.Context) ([]int, error) {
	client, err := rest.HTTPClientFor(l.Rest)
	if err != nil {
		return nil, err
	}
	all := make([]int, len(l.target.servers))
	for n, address := range l.target.servers {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		running, err := parseMetric(response.Body, "apiserver_longrunning_requests")
		_ = response.Body.Close()
		if err != nil {
			return nil, err
		}
		for labels, value := range running {
			if strings.Contains(labels, `resource="podtemplates"`) && strings.Contains(labels, `scope="namespace"`) {
				all[n] += int(value)
			}
		}
	}
	return all, nil
}

// plotWatches appends the number of watches by API server to a chart until ctx ends.
func (l *lab) plotWatches(ctx context.Context, front string) {
	begun := time.Now()
	for experiment.Sleep(ctx, countInterval) == nil {
		now, err := l.watches(ctx)
		if err != nil {
			continue // an API server is down
		}
		for n, count := range now {
			l.Result.Line(experiment.Series{
				Plot: "watches by API server after a kill, " + front, Name: clusterdir.APIServerName(n), X: "seconds since the kill", Unit: "watches",
			}, time.Since(begun).Seconds(), float64(count))
		}
	}
}

// signalServer sends a signal to an API server. The supervisor starts it again if it ends.
func (l *lab) signalServer(number int, signal syscall.Signal) error {
	id, err := l.process(clusterdir.APIServerName(number))
	if err != nil {
		return err
	}
	return id.Signal(signal)
}

// awaitServer waits until an API server that was killed is ready again.
func (l *lab) awaitServer(ctx context.Context, number int) error {
	client, err := rest.HTTPClientFor(l.Rest)
	if err != nil {
		return err
	}
	return l.await(ctx, clusterdir.APIServerName(number)+" ready", 1, func() int {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(limited, http.MethodGet, "https://"+l.target.servers[number]+"/readyz", nil)
		if err != nil {
			return 0
		}
		response, err := client.Do(request)
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return 0
		}
		return 1
	})
}

// mostToLeast returns the ratio of the largest to the smallest count. A smallest count of 0 counts as 1.
func mostToLeast(all []int) float64 {
	return float64(slices.Max(all)) / float64(max(slices.Min(all), 1))
}

// counts formats the counts of a table cell.
func counts(all []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", " / "), "[]")
}
