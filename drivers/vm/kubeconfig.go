package vm

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/kubeconfig"
	"github.com/millwright-dev/millwright/driver/status"
)

// newKubeconfigClient returns a cluster whose client has no rate limit. The API server has its own.
func newKubeconfigClient(text []byte) (*infrastructure, error) {
	config, err := restConfig(text)
	if err != nil {
		return nil, err
	}
	transport, err := newUntrustedTransport(config)
	if err != nil {
		return nil, badKubeconfig("its certificates or keys cannot be used")
	}
	made, err := newClient(config, &http.Client{Transport: transport})
	if err != nil {
		return nil, badKubeconfig("its certificates or keys cannot be used")
	}
	return &infrastructure{WithWatch: made, endpoint: Endpoint(config), pageSize: untrustedPage}, nil
}

// restConfig returns the connection that a kubeconfig describes. A user who can write the Secret of a class must
// not get access to programs, files or memory where the driver runs.
func restConfig(text []byte) (*rest.Config, error) {
	config, err := kubeconfig.Parse(text)
	if err != nil {
		return nil, badKubeconfig(err.Error())
	}
	config.QPS = -1
	config.ContentType = runtime.ContentTypeJSON
	return config, nil
}

func badKubeconfig(why string) error {
	return status.Error(codes.InvalidArgument, "key "+kubeconfigKey+" of the class's Secret: "+why)
}
