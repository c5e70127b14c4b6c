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
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/webhook"
)

// podIntake runs the webhook and the intake, if --intake=webhook is set.
type podIntake struct {
	ctx     context.Context
	options webhook.Options

	mu      sync.Mutex
	running *webhook.Server
}

func newPodIntake(ctx context.Context, options webhook.Options) *podIntake {
	return &podIntake{ctx: ctx, options: options}
}

// start attaches the intake to a scheduler that has not been started. The webhook is served when leads is closed,
// or when the scheduler starts to schedule if leads is nil.
func (w *podIntake) start(
	sched *kubescheduler.Scheduler, profiles []schedulerconfig.KubeSchedulerProfile, cfg *config.CompletedConfig, leads <-chan struct{},
) error {
	// A separate client has its own rate limit, so that requests of the intake and binds do not
	// delay each other.
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(cfg.KubeConfig), "intake"))
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	queue := intake.Attach(sched, profiles, cfg.InformerFactory, client)
	if leads == nil {
		leads = queue.Leads()
	}
	names := slices.Collect(maps.Keys(sched.Profiles))
	running, err := webhook.New(w.ctx, w.options, names, client, queue.Take, intake.CountDropped)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = running
	go running.Run(w.ctx, leads)
	return nil
}

// stop stops the webhook and deletes its configuration. It does nothing if the webhook was
// not started.
func (w *podIntake) stop() {
	w.mu.Lock()
	running := w.running
	w.mu.Unlock()
	if running != nil {
		running.Stop()
	}
}
