// Package dryrun is the flag --dry-run of commands that change something.
package dryrun

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/cli/args"
)

// Mode is the value of the flag. The zero value is the same as None.
type Mode struct {
	value   string
	accepts []string
}

// Values of the flag.
const (
	// None changes objects.
	None = "none"
	// Client prints the object that would be sent, without sending it.
	Client = "client"
	// Server sends requests that the server validates but does not store.
	Server = "server"
)

// Add adds the flag to a command that writes to an API server.
func (m *Mode) Add(cmd *cobra.Command) {
	m.add(cmd, `"client" prints what would be changed, "server" also sends it to the API server, which validates but does not store it`, Client, Server)
}

// AddLocal adds the flag to a command that does not use an API server.
func (m *Mode) AddLocal(cmd *cobra.Command) { m.add(cmd, `"client" prints what would be done`, Client) }

func (m *Mode) add(cmd *cobra.Command, usage string, accepts ...string) {
	m.accepts = append([]string{None}, accepts...)
	m.value = None
	cmd.Flags().Var(m, "dry-run", usage)
	cmd.Flags().Lookup("dry-run").NoOptDefVal = Client                                                                   // as in earlier versions, and of kubectl
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions(m.accepts, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

// String implements pflag.Value.
func (m *Mode) String() string { return m.value }

// Type implements pflag.Value.
func (m *Mode) Type() string { return "string" }

// Set implements pflag.Value. It accepts the values of the boolean flag of earlier versions.
func (m *Mode) Set(value string) error {
	switch value {
	case "true":
		value = Client
	case "false":
		value = None
	}
	if !slices.Contains(m.accepts, value) {
		return args.Wrongf("unknown mode %q; expected %s", value, strings.Join(m.accepts, ", "))
	}
	m.value = value
	return nil
}

// On reports whether nothing is to be changed.
func (m *Mode) On() bool { return m.value == Client || m.value == Server }

// Server reports whether the API server gets requests that it does not store.
func (m *Mode) Server() bool { return m.value == Server }

// Suffix returns the end of the line that reports a change, as in kubectl.
func (m *Mode) Suffix() string {
	switch m.value {
	case Client:
		return " (dry run)"
	case Server:
		return " (server dry run)"
	}
	return ""
}

// Wrap returns a client whose writes have the effect of the mode.
func (m *Mode) Wrap(c client.Client) client.Client {
	switch m.value {
	case Client:
		return unwritten{Client: c}
	case Server:
		return client.NewDryRunClient(c)
	}
	return c
}

// unwritten is a client that sends no writes. Callers change objects before they write them, so the objects are those that
// would be sent.
type unwritten struct{ client.Client }

// Create does nothing.
func (unwritten) Create(context.Context, client.Object, ...client.CreateOption) error { return nil }

// Update does nothing.
func (unwritten) Update(context.Context, client.Object, ...client.UpdateOption) error { return nil }

// Patch does nothing.
func (unwritten) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return nil
}

// Apply does nothing.
func (unwritten) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return nil
}

// Delete does nothing.
func (unwritten) Delete(context.Context, client.Object, ...client.DeleteOption) error { return nil }

// DeleteAllOf does nothing.
func (unwritten) DeleteAllOf(context.Context, client.Object, ...client.DeleteAllOfOption) error {
	return nil
}

// Status returns nil, because no command writes a status.
func (unwritten) Status() client.SubResourceWriter { return nil }

// SubResource returns nil, because no command uses a client for subresources.
func (unwritten) SubResource(string) client.SubResourceClient { return nil }
