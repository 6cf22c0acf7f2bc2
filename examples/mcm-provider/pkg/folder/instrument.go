package folder

import (
	"strconv"
	"time"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/metrics"
)

// record records a request to the provider when the returned function is called.
func record(service string, err *error) func() {
	begin := time.Now()
	return func() {
		metrics.APIRequestCount.WithLabelValues(Provider, service).Inc()
		if *err != nil {
			metrics.APIFailedRequestCount.WithLabelValues(Provider, service).Inc()
			return
		}
		metrics.APIRequestDuration.WithLabelValues(Provider, service).Observe(time.Since(begin).Seconds())
	}
}

// recordCall records a call of the driver when the returned function is called.
func recordCall(operation string, err *error) func() {
	begin := time.Now()
	return func() {
		if *err == nil {
			metrics.DriverAPIRequestDuration.WithLabelValues(Provider, operation).Observe(time.Since(begin).Seconds())
			return
		}
		metrics.DriverFailedAPIRequests.WithLabelValues(Provider, operation, strconv.Itoa(int(codeOf(*err)))).Inc()
	}
}

// codeOf returns the code of an error.
func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Internal
}
