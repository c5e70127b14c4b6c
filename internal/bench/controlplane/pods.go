package controlplane

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// podLoad returns a load without an operation, which the caller sets. Failed operations are counted by kind
// of error, and not retried. count is the number of operations, or 0 for no limit.
func (t *storeRun) podLoad(count, workers int, rate float64) experiment.Load {
	return experiment.Load{
		Workers: min(workers, max(count, 1)), Rate: rate, Count: count, Kind: bulk.ErrorKind,
		Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1),
	}
}

// createPods creates pods. It sends one request per pod and does not retry, so that each failure counts.
func (t *storeRun) createPods(ctx context.Context, s *startups, prefix string, count, workers int, rate float64) (experiment.Load, error) {
	pods, err := usualPods()
	if err != nil {
		return experiment.Load{}, err
	}
	task := t.Display.Task("pods created", count)
	load := t.podLoad(count, workers, rate)
	load.Progress = task.Set
	load.Do = func(ctx context.Context, number, worker int) error {
		name := podName(prefix, number)
		s.requestSent(name)
		return t.Clients.CreatePod(ctx, worker, pods.Make(namespace, name))
	}
	return load, t.finishLoad(ctx, load, load.Run(ctx), task)
}

// deletePods deletes pods. It sends one request per pod and does not retry.
func (t *storeRun) deletePods(ctx context.Context, prefix string, count, workers int) (experiment.Load, error) {
	task := t.Display.Task("pods deleted", count)
	load := t.podLoad(count, workers, 0)
	load.Progress = task.Set
	load.Do = func(ctx context.Context, number, worker int) error {
		return t.Clients.DeletePod(ctx, worker, namespace, podName(prefix, number))
	}
	return load, t.finishLoad(ctx, load, load.Run(ctx), task)
}

// finishLoad adds the numbers of operations and errors of a load to Result.Errors, and ends the task of the
// load on the display.
func (t *storeRun) finishLoad(ctx context.Context, load experiment.Load, done int, task progress.Task) error {
	t.Result.Errors.Merge(load.Tally)
	if ctx.Err() != nil {
		task.Interrupt()
		return ctx.Err()
	}
	task.Done(fmt.Sprint(done))
	return nil
}

func podName(prefix string, number int) string { return fmt.Sprintf("%s%06d", prefix, number) }

// cleanUp deletes the namespace from an existing cluster. It does not use the context of the run,
// because an interrupted run must clean up as well.
func (t *storeRun) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	task := t.Display.Task("cleaning up", 0)
	namespaces := t.Client.CoreV1().Namespaces()
	err := namespaces.Delete(ctx, namespace, metav1.DeleteOptions{})
	for err == nil {
		task.Say("waiting until namespace " + namespace + " is gone")
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(time.Second):
			_, err = namespaces.Get(ctx, namespace, metav1.GetOptions{})
		}
	}
	if !apierrors.IsNotFound(err) {
		task.Fail(err.Error())
		return fmt.Errorf("deleting namespace %s: %w; delete it with kubectl", namespace, err)
	}
	task.Done("done")
	return nil
}
