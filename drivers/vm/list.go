package vm

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// trustedPage is the number of objects per response to a list of Options.Client.
	trustedPage = 500
	// maxListed is the maximum number of objects in a list. It is also that of the protocol for drivers in other
	// processes.
	maxListed = 50_000
)

// eachPage lists objects in pages and calls a function for each page, which the list contains then. It returns an
// error for a list that is too long, not a part of it.
func (i *infrastructure) eachPage(ctx context.Context, list client.ObjectList, page func(), opts ...client.ListOption) error {
	for next, listed := "", 0; listed <= maxListed; {
		if err := i.List(ctx, list, append(opts, client.Limit(i.pageSize), client.Continue(next))...); err != nil {
			return err
		}
		page()
		if next = list.GetContinue(); next == "" {
			return nil
		}
		listed += max(meta.LenList(list), 1)
	}
	return fmt.Errorf("the list has more than %d objects", maxListed)
}
