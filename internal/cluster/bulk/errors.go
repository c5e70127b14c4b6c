package bulk

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// ErrorKind classifies an error for summaries.
func ErrorKind(err error) string {
	switch {
	case apierrors.IsTooManyRequests(err):
		return "429 too many requests"
	case isTimeout(err):
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case isBrokenConnection(err):
		return "connection lost"
	}
	if reason := apierrors.ReasonForError(err); reason != "" {
		return string(reason)
	}
	return "other"
}

// isRetryable reports whether an error is transient: the same request may succeed later.
func isRetryable(err error) bool {
	return apierrors.IsTooManyRequests(err) || isTimeout(err) ||
		errors.Is(err, syscall.ECONNREFUSED) || isBrokenConnection(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err)
}

// retryAfter returns the Retry-After of the response; 0 if the response has none.
func retryAfter(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second
	}
	return 0
}

func isTimeout(err error) bool {
	var timeout net.Error
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

func isBrokenConnection(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err) || errors.Is(err, syscall.EPIPE)
}
