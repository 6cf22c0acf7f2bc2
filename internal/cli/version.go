package cli

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"

	"github.com/millwright-dev/millwright/internal/cli/args"
	"github.com/millwright-dev/millwright/internal/cli/kubeconfig"
	"github.com/millwright-dev/millwright/internal/cli/output"
	"github.com/millwright-dev/millwright/internal/cli/program"
)

// serverTimeout is how long an API server may take to report its version.
const serverTimeout = 10 * time.Second

// versions are those of this program and of the API server. Their JSON has the fields of "kubectl version".
type versions struct {
	Client clientVersion     `json:"clientVersion"`
	Server *kubeversion.Info `json:"serverVersion,omitempty"`

	line, host string
}

type clientVersion struct {
	GitVersion string `json:"gitVersion"`
	GoVersion  string `json:"goVersion"`
	Platform   string `json:"platform"`
}

func (v versions) print(out io.Writer) error {
	text := v.line + "\n"
	if v.Server != nil {
		text += fmt.Sprintf("Kubernetes %s at %s\n", v.Server.GitVersion, v.host)
	}
	_, err := io.WriteString(out, text)
	return err
}

func newVersionCommand(version string) *cobra.Command {
	flags, format := &kubeconfig.Flags{}, &output.Format{}
	client := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of the API server",
		Long: `Print the versions of this program and of the API server. The latter is left out with --client, or if
no cluster is configured.`,
		Example: `  millwright version
  millwright version --client -o json`,
		Args: args.None,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := versions{line: program.VersionLine("millwright", version)}
			all.Client = clientVersion{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			var failed error
			if !client {
				failed = all.readServer(flags)
			}
			return errors.Join(format.Print(cmd.OutOrStdout(), all, all.print), failed)
		},
	}
	flags.AddCluster(cmd)
	cmd.Flags().BoolVar(&client, "client", false, "print only the version of this program")
	format.Add(cmd, output.Values)
	return cmd
}

// readServer reads the version of the API server, if a cluster is configured.
func (v *versions) readServer(flags *kubeconfig.Flags) error {
	config, _, err := flags.Load()
	if errors.Is(err, kubeconfig.ErrNoCluster) {
		return nil
	}
	if err != nil {
		return err
	}
	config.Timeout = serverTimeout
	c, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot connect to %s: %w", config.Host, err)
	}
	info, err := c.ServerVersion()
	if err != nil {
		return flags.ExplainStopped(fmt.Errorf("cannot read the version of the API server %s: %w; use --client to print only that of this program", config.Host, err))
	}
	v.Server, v.host = info, config.Host
	return nil
}
