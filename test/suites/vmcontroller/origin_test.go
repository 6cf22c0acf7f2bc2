package vmcontroller

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The following is a hypervisor and a VM controller as a third party could build them: they know each message,
// field and method of the original definitions, and nothing of ours. Their certificates come from a CA that is
// not Millwright's.

// origin contains the original definitions.
type origin struct{ file protoreflect.FileDescriptor }

func readOrigin(t *testing.T) origin {
	t.Helper()
	text, err := os.ReadFile("../../../proto/metropolis/vm/testdata/origin.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := prototext.Unmarshal(text, set); err != nil {
		t.Fatal(err)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}
	file, err := files.FindFileByPath("metropolis/vm/vm.proto")
	if err != nil {
		t.Fatal(err)
	}
	return origin{file}
}

// fields are the fields of a message by name.
type fields map[protoreflect.Name]any

// message returns a message of the original definitions.
func (o origin) message(name protoreflect.Name, with fields) *dynamicpb.Message {
	m := dynamicpb.NewMessage(o.file.Messages().ByName(name))
	for field, value := range with {
		if sub, is := value.(*dynamicpb.Message); is {
			value = sub.ProtoReflect()
		}
		m.Set(m.Descriptor().Fields().ByName(field), protoreflect.ValueOf(value))
	}
	return m
}

// get returns a field of a message, or of a nested message.
func get(m protoreflect.Message, path ...protoreflect.Name) protoreflect.Value {
	value := protoreflect.ValueOf(m)
	for _, name := range path {
		m = value.Message()
		value = m.Get(m.Descriptor().Fields().ByName(name))
	}
	return value
}

// method returns the full gRPC name of a method, and its definition.
func (o origin) method(service, name protoreflect.Name) (string, protoreflect.MethodDescriptor) {
	of := o.file.Services().ByName(service)
	return "/" + string(of.FullName()) + "/" + string(name), of.Methods().ByName(name)
}

// issuer is a third-party CA, such as one of cert-manager.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{t: t}
	i.cert, i.key = i.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return i
}

func (i *issuer) sign(cert *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent, by := i.cert, i.key
	if parent == nil {
		parent, by = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), by)
	if err != nil {
		i.t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return signed, key
}

// identity is a certificate with one name.
func (i *issuer) identity(name string) tls.Certificate {
	i.t.Helper()
	uri, err := url.Parse(name)
	if err != nil {
		i.t.Fatal(err)
	}
	cert, key := i.sign(&x509.Certificate{URIs: []*url.URL{uri}, KeyUsage: x509.KeyUsageDigitalSignature})
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// lay writes a certificate as cert-manager does.
func (i *issuer) lay(dir, name string) (cert, key, authority string) {
	i.t.Helper()
	made := i.identity(name)
	private, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		i.t.Fatal(err)
	}
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			i.t.Fatal(err)
		}
		return path
	}
	return write("tls.crt", "CERTIFICATE", made.Leaf.Raw), write("tls.key", "PRIVATE KEY", private), write("ca.crt", "CERTIFICATE", i.cert.Raw)
}

// mutual returns a TLS configuration with a certificate, for a side that knows the name of its peer.
func (i *issuer) mutual(us, them string) credentials.TransportCredentials {
	roots := x509.NewCertPool()
	roots.AddCert(i.cert)
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.identity(us)},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
		InsecureSkipVerify: true, // there are no host names
		VerifyConnection: func(state tls.ConnectionState) error {
			peer := state.PeerCertificates[0]
			_, err := peer.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			if err == nil && (len(peer.URIs) != 1 || peer.URIs[0].String() != them) {
				err = errors.New("the other side is not " + them)
			}
			return err
		},
	})
}

// originController is a VM controller built from the original definitions.
type originController struct {
	origin
	address string

	mu      sync.Mutex
	status  protoreflect.EnumNumber // that a run lease reports
	changed chan struct{}           // closed when status changes
	calls   map[string]protoreflect.Message
}

// serve starts it for one hypervisor.
func (o origin) serve(t *testing.T, by *issuer, hypervisor string) *originController {
	t.Helper()
	c := &originController{origin: o, changed: make(chan struct{}), calls: map[string]protoreflect.Message{}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = listener.Addr().String()
	server := grpc.NewServer(grpc.Creds(by.mutual("millwright://controller", hypervisor)))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: string(o.file.Services().ByName("VMController").FullName()),
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "EnsureMigrationTarget", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := o.message("EnsureMigrationTargetRequest", nil)
			if err := decode(request); err != nil {
				return nil, err
			}
			c.called("EnsureMigrationTarget", request)
			return o.message("EnsureMigrationTargetResponse", fields{"action": protoreflect.EnumNumber(2)}), nil // ACTION_SOFT_SHUTDOWN
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "RunLease", ServerStreams: true, Handler: c.runLease}},
	}, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c
}

func (c *originController) called(method string, request *dynamicpb.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[method] = request
}

// call returns the last request of a method, or nil.
func (c *originController) call(method string) protoreflect.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[method]
}

// setStatus changes the status that the run lease reports.
func (c *originController) setStatus(status protoreflect.EnumNumber) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *originController) runLease(_ any, stream grpc.ServerStream) error {
	request := c.message("RunLeaseRequest", nil)
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	c.called("RunLease", request)
	for {
		c.mu.Lock()
		status, changed := c.status, c.changed
		c.mu.Unlock()
		if status != 0 {
			if err := stream.SendMsg(c.message("RunLeaseUpdate", fields{"status": status})); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// originHypervisor makes the calls of a hypervisor built from the original definitions.
type originHypervisor struct {
	origin
	t    *testing.T
	conn *grpc.ClientConn
	us   *dynamicpb.Message
}

func (o origin) hypervisor(t *testing.T, by *issuer, endpoint string, namespace, vm, pod string) *originHypervisor {
	t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(by.mutual("millwright://vm/"+namespace+"/"+vm+"/"+pod, "millwright://controller")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	us := o.message("HypervisorID", fields{"vm_name": vm, "namespace": namespace, "pod_name": pod, "run_id": uint64(time.Now().UnixNano())})
	return &originHypervisor{o, t, conn, us}
}

// invoke calls a method of VMController.
func (h *originHypervisor) invoke(method protoreflect.Name, with fields) (protoreflect.Message, error) {
	h.t.Helper()
	name, of := h.method("VMController", method)
	response := dynamicpb.NewMessage(of.Output())
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	err := h.conn.Invoke(ctx, name, h.message(of.Input().Name(), with), response)
	return response, err
}

// runLease opens a run lease, and returns its responses.
func (h *originHypervisor) runLease() (next func() (protoreflect.EnumNumber, error)) {
	h.t.Helper()
	name, of := h.method("VMController", "RunLease")
	stream, err := h.conn.NewStream(h.t.Context(), &grpc.StreamDesc{ServerStreams: true}, name)
	if err == nil {
		err = stream.SendMsg(h.message("RunLeaseRequest", fields{"us": h.us}))
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return func() (protoreflect.EnumNumber, error) {
		update := dynamicpb.NewMessage(of.Output())
		err := stream.RecvMsg(update)
		return get(update, "status").Enum(), err
	}
}
