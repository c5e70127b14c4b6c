package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/webhook"
)

// podIntake is how pods come before the watch shows them, if that is wanted.
type podIntake struct {
	ctx     context.Context
	options webhook.Options

	mu      sync.Mutex
	running *webhook.Server
}

func newPodIntake(ctx context.Context, options webhook.Options) *podIntake {
	return &podIntake{ctx: ctx, options: options}
}

// start is called when the scheduler is complete, and has not been started. The webhook is
// served from when leads is closed, or if that is nil, from when the scheduler schedules.
func (w *podIntake) start(
	sched *upstream.Scheduler, profiles []schedulerconfig.KubeSchedulerProfile, cfg *config.CompletedConfig, leads <-chan struct{},
) error {
	// A client of its own does not wait behind binds, nor have them wait.
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(cfg.KubeConfig), "intake"))
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	queue := intake.Attach(sched, profiles, cfg.InformerFactory, client)
	if leads == nil {
		leads = queue.Leads()
	}
	names := slices.Collect(maps.Keys(sched.Profiles))
	running, err := webhook.New(w.options, names, client, queue.Take, intake.Drop)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = running
	go running.Run(w.ctx, leads)
	return nil
}

// stop has API servers no longer tell of pods; nothing does if it was not started.
func (w *podIntake) stop() {
	w.mu.Lock()
	running := w.running
	w.mu.Unlock()
	if running != nil {
		running.Stop()
	}
}
