// Command image builds a container image, the manager's or that of hypervisors, from programs that
// hack/image.sh has built, without a container engine, writes it to a folder, and pushes it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

type options struct {
	folder    string
	reference string
	revision  string
	sbom      string
	base      string
	packages  string
	created   int64
	push      bool
	programs  []program
}

// run writes what is asked for, and prints the digest of the image, if that is.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(o.reference)
	if err != nil {
		return err
	}
	if o.sbom != "" {
		packages, err := readPackages(o.packages)
		if err != nil {
			return err
		}
		if err := writeSBOMs(o.sbom, tag.TagStr(), packages, o.programs); err != nil {
			return err
		}
	}
	if o.folder == "" {
		return nil
	}
	return o.image(ctx, tag, stdout)
}

// image writes the image, pushes it if asked for, and prints its digest.
func (o options) image(ctx context.Context, tag name.Tag, stdout io.Writer) error {
	of := about{version: tag.TagStr(), revision: o.revision, created: time.Unix(o.created, 0).UTC(), base: o.base}
	index, err := indexOf(of, o.programs)
	if err != nil {
		return err
	}
	if err := write(o.folder, index, tag); err != nil {
		return fmt.Errorf("writing %s: %w", o.folder, err)
	}
	if o.push {
		if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("pushing %s: %w", tag, err)
		}
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, digest)
	return err
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&o.folder, "layout", "", "folder that becomes the image's OCI layout, in place of one that is there; no image by default")
	flags.StringVar(&o.reference, "reference", "", "the image's repository and tag, which is the version")
	flags.StringVar(&o.revision, "revision", "", "commit that the programs were built from, if it is known")
	flags.StringVar(&o.sbom, "sbom", "", "folder for the programs' bills of materials; none by default")
	flags.StringVar(&o.base, "base", "", "folder with the files of hypervisors, which makes it their image; the manager's by default")
	flags.StringVar(&o.packages, "packages", "", "file with the packages of Debian that --base is from, a line NAME VERSION each, for --sbom")
	flags.Int64Var(&o.created, "created", 0, "when the image was made, in seconds since 1970")
	flags.BoolVar(&o.push, "push", false, "push the image, too")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.folder == "" && o.sbom == "" || o.reference == "" || flags.NArg() == 0 {
		return o, errors.New("--layout or --sbom, --reference and a program, as PLATFORM=PATH, are required")
	}
	if o.push && o.folder == "" {
		return o, errors.New("--push needs --layout")
	}
	for _, arg := range flags.Args() {
		platform, path, ok := strings.Cut(arg, "=")
		if !ok {
			return o, fmt.Errorf("%s is not of the form PLATFORM=PROGRAM", arg)
		}
		parsed, err := v1.ParsePlatform(platform)
		if err != nil {
			return o, err
		}
		o.programs = append(o.programs, program{platform: *parsed, path: path})
	}
	return o, nil
}

// The annotations with the name of an image in a layout: that of the specification, and that of
// containerd's import.
const (
	nameInLayout     = "org.opencontainers.image.ref.name"
	nameInContainerd = "io.containerd.image.name"
)

// write replaces the folder by the image's layout in one step.
func write(folder string, index v1.ImageIndex, tag name.Tag) error {
	if err := mayReplace(folder); err != nil {
		return err
	}
	parent := filepath.Dir(folder)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(parent, ".image-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	path, err := layout.Write(filepath.Join(scratch, "layout"), empty.Index)
	if err != nil {
		return err
	}
	// containerd does not use the library's name of Docker Hub.
	full := strings.TrimPrefix(tag.Name(), "index.")
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{nameInLayout: tag.TagStr(), nameInContainerd: full})); err != nil {
		return err
	}
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	return os.Rename(string(path), folder)
}

// mayReplace returns an error if the folder contains anything but a layout.
func mayReplace(folder string) error {
	switch entries, err := os.ReadDir(folder); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) == 0:
		return nil
	}
	if _, err := os.Stat(filepath.Join(folder, "oci-layout")); err != nil {
		return fmt.Errorf("it holds something else than an image: %w", err)
	}
	return nil
}
