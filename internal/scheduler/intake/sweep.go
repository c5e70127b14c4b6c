package intake

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// startSweep starts the periodic check of early pods. It is called when the scheduler starts to schedule.
func (in *Intake) startSweep(logger klog.Logger) {
	in.startOnce.Do(func() {
		close(in.leads)
		go in.sweepAll(logger, in.clock.NewTicker(SweepInterval))
	})
}

func (in *Intake) stopSweep() { in.stopOnce.Do(func() { close(in.stop) }) }

func (in *Intake) sweepAll(logger klog.Logger, ticker clock.Ticker) {
	defer ticker.Stop()
	for {
		select {
		case <-in.stop:
			return
		case <-ticker.C():
			in.sweep(logger)
		}
	}
}

// sweep requests the pods from the API server whose binding cycles have waited too long, and discards early
// pods that were not confirmed in time.
func (in *Intake) sweep(logger klog.Logger) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := in.clock.Now()
	inFlight := sync.OnceValue(in.inFlight)
	for _, e := range in.early {
		age := now.Sub(e.since)
		switch {
		case e.real != nil:
			in.addReal(context.Background(), e, inFlight())
		case e.fate != unsettled:
			if now.Sub(e.settledAt) > fateKeptFor {
				in.forget(e)
			}
		case age > EarlyExpiry:
			in.expire(logger, e, expiredTimeout)
		case e.binding && !e.getInFlight && age > nextGetAfter(e.notFound) && in.getsInFlight < maxConcurrentGets:
			e.getInFlight = true
			in.getsInFlight++
			go in.confirmByGet(logger, e)
		}
	}
	for namespace, until := range in.paused {
		if until.Before(now) {
			delete(in.paused, namespace)
		}
	}
}

// nextGetAfter returns the age of an early pod at which it is requested from the API server. notFound is the
// number of requests that did not find it.
func nextGetAfter(notFound int) time.Duration {
	if notFound == 0 {
		return firstGetAfter
	}
	return secondGetAfter
}

// expire discards an early pod, and makes the intake ignore pods of its namespace for namespacePause.
func (in *Intake) expire(logger klog.Logger, e *early, reason string) {
	in.discard(logger, e, reason)
	in.paused[e.pod.Namespace] = in.clock.Now().Add(namespacePause)
}

// confirmByGet requests an early pod from the API server. If the API server stores the pod after that, the
// watch confirms it.
func (in *Intake) confirmByGet(logger klog.Logger, e *early) {
	ctx, cancel := context.WithTimeout(context.Background(), getTimeout)
	defer cancel()
	pod, err := in.getPod(ctx, e.pod.Namespace, e.pod.Name)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.getsInFlight--
	e.getInFlight = false
	switch {
	case e.fate != unsettled:
	case apierrors.IsNotFound(err) || err == nil && pod.UID != e.pod.UID:
		if e.notFound++; e.notFound > 1 {
			in.expire(logger, e, expiredAbsent)
		}
	case err != nil:
		logger.V(3).Info("Getting a pod failed; will retry", "pod", klog.KObj(e.pod), "err", err)
	case in.isUnchanged(e, pod):
		confirmations.WithLabelValues(byGet).Inc()
		in.settle(e, stored, in.clock.Now())
	default:
		// The watch will show the current version, which was changed, bound or is being deleted.
		in.settle(e, gone, in.clock.Now())
	}
}

// isUnchanged returns whether a stored pod equals the delivered one and is not bound yet.
func (in *Intake) isUnchanged(e *early, pod *v1.Pod) bool {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return false
	}
	in.trim(pod)
	return samePod(e.pod, pod)
}
