package crash

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/smallfs"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestFaults_EtcdDiskIsFull fills the disk of etcd during a rolling update. etcd crashes, and crashes again on each
// restart. When there is free space, everything continues.
func TestFaults_EtcdDiskIsFull(t *testing.T) {
	tier.All(t)
	disk := smallfs.NewSize(t, 384<<20) // twice the space reserved for etcd's log, plus its data
	t.Attr("fault", "The disk is full while etcd stores writes during a rolling update")
	own := env.New(t, env.WithDir(disk.Dir))
	l := &lane{nodes: withAllKinds(t, own.Cluster)}
	s := called("rolling update")
	s.always = nil // watches terminate with their server
	s.waitTimeout = 3 * waitTimeout
	act, stored := s.act, 0
	s.act = func(ctx context.Context, r *run) (err error) {
		if err := act(ctx, r); err != nil {
			return err
		}
		disk.Fill(0)
		stored, err = fillEtcd(ctx, own.Cluster)
		disk.FreeSpace()
		return err
	}
	if result := l.play(t, s, nil, sound); result.err != nil {
		t.Errorf("%v\n%s", result.err, result.transcript)
	}
	t.Attr("outcome", fmt.Sprintf("etcd crashes after %d objects of 500 kB; the rolling update completes within its bounds once there is free space", stored))
}

// The objects that fill etcd: their size, their maximum number, and the timeout of a request.
const (
	fillerSize  = 500 << 10
	mostFillers = 1000
	fillPatient = 5 * time.Second
)

// fillEtcd writes objects until a write is rejected or times out, and etcd is down. It returns how many are
// stored.
func fillEtcd(ctx context.Context, c *env.Cluster) (stored int, err error) {
	content := map[string]string{"x": strings.Repeat("x", fillerSize)}
	for range mostFillers {
		filler := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: "filler-"}, Data: content}
		bounded, cancel := context.WithTimeout(ctx, fillPatient)
		err := c.Client.Create(bounded, filler)
		cancel()
		if err == nil {
			stored++
		} else if !etcdHealthy(ctx, c) {
			return stored, nil
		}
	}
	return stored, errors.New("etcd stores more than it has space for")
}

// etcdHealthy reports whether etcd is healthy.
func etcdHealthy(ctx context.Context, c *env.Cluster) bool {
	ctx, cancel := context.WithTimeout(ctx, fillPatient)
	defer cancel()
	url, access := c.ControlPlane.Etcd()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return false
	}
	transport := &http.Transport{TLSClientConfig: access}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}
