// Command image builds a container image, the manager's or that of hypervisors, from programs that hack/image.sh
// has built. It needs no container engine, writes the image to a directory, and can push it.
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
	dir       string
	reference string
	revision  string
	sbom      string
	base      string
	packages  string
	created   int64
	push      bool
	programs  []program
}

// run writes the requested files, and prints the digest of the image if one was built.
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
	if o.dir == "" {
		return nil
	}
	return o.image(ctx, tag, stdout)
}

// image writes the image, pushes it if requested, and prints its digest.
func (o options) image(ctx context.Context, tag name.Tag, stdout io.Writer) error {
	of := about{version: tag.TagStr(), revision: o.revision, created: time.Unix(o.created, 0).UTC(), base: o.base}
	index, err := indexOf(of, o.programs)
	if err != nil {
		return err
	}
	if err := write(o.dir, index, tag); err != nil {
		return fmt.Errorf("cannot write %s: %w", o.dir, err)
	}
	if o.push {
		if err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("cannot push %s: %w", tag, err)
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
	flags.StringVar(&o.dir, "layout", "", "directory for the image's OCI layout, which replaces an existing layout; by default, no image is built")
	flags.StringVar(&o.reference, "reference", "", "repository and tag of the image; the tag is the version")
	flags.StringVar(&o.revision, "revision", "", "commit of the programs' sources, if known")
	flags.StringVar(&o.sbom, "sbom", "", "directory for the programs' bills of materials; by default, none are written")
	flags.StringVar(&o.base, "base", "", "directory with the files of hypervisors, to build their image; by default, the manager's image is built")
	flags.StringVar(&o.packages, "packages", "", "file with the Debian packages of --base, one line NAME VERSION each, for --sbom")
	flags.Int64Var(&o.created, "created", 0, "time of the image in seconds since 1970")
	flags.BoolVar(&o.push, "push", false, "also push the image")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.dir == "" && o.sbom == "" || o.reference == "" || flags.NArg() == 0 {
		return o, errors.New("--layout or --sbom, --reference and a program, as PLATFORM=PATH, are required")
	}
	if o.push && o.dir == "" {
		return o, errors.New("--push requires --layout")
	}
	for _, arg := range flags.Args() {
		platform, path, ok := strings.Cut(arg, "=")
		if !ok {
			return o, fmt.Errorf("invalid argument %q; use PLATFORM=PATH", arg)
		}
		parsed, err := v1.ParsePlatform(platform)
		if err != nil {
			return o, err
		}
		o.programs = append(o.programs, program{platform: *parsed, path: path})
	}
	return o, nil
}

// Annotations with the name of an image in a layout: the annotation of the specification, and that of containerd's
// import.
const (
	nameInLayout     = "org.opencontainers.image.ref.name"
	nameInContainerd = "io.containerd.image.name"
)

// write replaces the directory by the image's layout in one step.
func write(dir string, index v1.ImageIndex, tag name.Tag) error {
	if err := mayReplace(dir); err != nil {
		return err
	}
	parent := filepath.Dir(dir)
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
	// containerd does not use the library's name for Docker Hub.
	full := strings.TrimPrefix(tag.Name(), "index.")
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{nameInLayout: tag.TagStr(), nameInContainerd: full})); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(string(path), dir)
}

// mayReplace returns an error if the directory contains anything but a layout.
func mayReplace(dir string) error {
	switch entries, err := os.ReadDir(dir); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) == 0:
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
		return fmt.Errorf("the directory exists but is not an OCI layout: %w", err)
	}
	return nil
}
