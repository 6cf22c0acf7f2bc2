package machine

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
)

// write is one request.
type write struct {
	// what is "verb kind" or "verb kind/subresource".
	what, name, body string
}

// recorded is the client with every write noted in the world.
func (w *world) recorded(inner client.WithWatch) client.Client {
	note := func(what string, object client.Object, body []byte) error {
		made := write{what: what + " " + kindOf(object), name: object.GetName(), body: string(body)}
		if w.refuse != nil {
			if err := w.refuse(made); err != nil {
				return err
			}
		}
		w.writes = append(w.writes, made)
		return nil
	}
	return interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			body, _ := json.Marshal(object)
			if err := note("create", object, body); err != nil {
				return err
			}
			return c.Create(ctx, object, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if err := note("delete", object, nil); err != nil {
				return err
			}
			return c.Delete(ctx, object, options...)
		},
		List: listByIndex,
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			panic("the controller writes with patches")
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			body, _ := patch.Data(object)
			if err := note("patch", object, body); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			body, _ := patch.Data(object)
			if err := note("patch "+sub+" of", object, body); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, object, patch, options...)
		},
	})
}

// listByIndex answers for the indexes that a cache has and an API server has not.
func listByIndex(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	if asked.FieldSelector == nil {
		return c.List(ctx, list, options...)
	}
	if nodes, ok := list.(*corev1.NodeList); ok {
		if marked, ok := asked.FieldSelector.RequiresExactMatch(target.NodeByMachine); ok {
			return c.List(ctx, nodes, client.MatchingLabels{v1alpha1.LabelKeyMachineName: marked})
		}
		id, _ := asked.FieldSelector.RequiresExactMatch(target.NodeByProviderID)
		err := c.List(ctx, nodes)
		nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return n.Spec.ProviderID != id })
		return err
	}
	machines, ok := list.(*v1alpha1.MachineList)
	if !ok {
		return c.List(ctx, list, options...)
	}
	if err := c.List(ctx, machines, client.InNamespace(asked.Namespace)); err != nil {
		return err
	}
	for _, wanted := range asked.FieldSelector.Requirements() {
		machines.Items = slices.DeleteFunc(machines.Items, func(m v1alpha1.Machine) bool {
			switch wanted.Field {
			case fieldindex.MachineByNode:
				return m.Labels[v1alpha1.NodeLabelKey] != wanted.Value
			case fieldindex.MachineByProviderID:
				return m.Spec.ProviderID != wanted.Value
			default:
				return replacement.Pools(&m)[0] != wanted.Value
			}
		})
	}
	return nil
}

func kindOf(object client.Object) string {
	switch object.(type) {
	case *v1alpha1.Machine:
		return "Machine"
	case *corev1.Node:
		return "Node"
	case *corev1.Secret:
		return "Secret"
	default:
		return "something else"
	}
}

// countReads counts the reads of a client.
type countReads struct {
	client.Client
	reads *int
}

func (c countReads) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	*c.reads++
	return c.Client.Get(ctx, key, object, options...)
}

// wrote lists the kinds of the writes since the last call, in order.
func (w *world) wrote() []string {
	var list []string
	for _, made := range w.writes {
		list = append(list, made.what)
	}
	w.writes = nil
	return list
}

func (w *world) said() string {
	var lines []string
	for _, made := range w.writes[max(0, len(w.writes)-10):] {
		lines = append(lines, made.what+" "+made.name+" "+made.body)
	}
	return strings.Join(lines, "\n")
}
