package pluginserver_test

import (
	"context"
	"testing"

	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/millwright-dev/millwright/driver/codes"
	driverpb "github.com/millwright-dev/millwright/proto/driver"
)

func TestSecret_OnlyOfOwnOperation(t *testing.T) {
	m := newManager(t)
	r := m.raw()
	r.registered(registration())
	ctx, cancel := context.WithCancel(t.Context())
	done := ask(ctx, <-m.added, "one")
	op := r.receive().GetOperation()

	secret, err := r.client.GetSecret(t.Context(), op.GetSecret())
	wantEnd(t, err, grpccodes.OK)
	if string(secret.GetData()["token"]) != "s3cr3t" || secret.GetVersion() != op.GetSecret().GetVersion() {
		t.Errorf("the Secret is %v", secret)
	}
	_, err = r.client.GetMachineClass(t.Context(), op.GetMachineClass())
	wantEnd(t, err, grpccodes.OK)

	for name, tt := range map[string]struct {
		change func(*driverpb.SecretMeta)
		want   grpccodes.Code
	}{
		"no operation":      {func(s *driverpb.SecretMeta) { s.OperationId = "" }, grpccodes.NotFound},
		"unknown operation": {func(s *driverpb.SecretMeta) { s.OperationId = "AAAAAAAAAAAAAAAAAAAAAAAAAA" }, grpccodes.NotFound},
		"other namespace":   {func(s *driverpb.SecretMeta) { s.Namespace = "kube-system" }, grpccodes.PermissionDenied},
		"other name":        {func(s *driverpb.SecretMeta) { s.Name = "another" }, grpccodes.PermissionDenied},
		"other version":     {func(s *driverpb.SecretMeta) { s.Version = "1" }, grpccodes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			asked := proto.CloneOf(op.GetSecret())
			tt.change(asked)
			_, err := r.client.GetSecret(t.Context(), asked)
			wantEnd(t, err, tt.want)
			class := proto.CloneOf(op.GetMachineClass())
			class.OperationId, class.Namespace, class.Name = asked.GetOperationId(), asked.GetNamespace(), asked.GetName()
			if asked.GetVersion() != op.GetSecret().GetVersion() {
				class.Version = asked.GetVersion()
			}
			_, err = r.client.GetMachineClass(t.Context(), class)
			wantEnd(t, err, tt.want)
		})
	}

	cancel()
	wantCode(t, (<-done).err, codes.Canceled)
	_, err = r.client.GetSecret(t.Context(), op.GetSecret())
	wantEnd(t, err, grpccodes.NotFound)
	_, err = r.client.GetMachineClass(t.Context(), op.GetMachineClass())
	wantEnd(t, err, grpccodes.NotFound)
}

func TestSecret_VersionRevealsNothing(t *testing.T) {
	versions := map[string]bool{}
	for range 2 { // two managers
		m := newManager(t)
		r := m.raw()
		r.registered(registration())
		done := ask(soon(t), <-m.added, "one")
		op := r.receive().GetOperation()
		versions[op.GetSecret().GetVersion()] = true
		r.respond(op)
		wantCode(t, (<-done).err, codes.OK)
	}
	if len(versions) != 2 {
		t.Error("two managers give equal Secrets equal versions, which would allow guesses to be verified")
	}
}
