package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// file of a layer, owned by root, with the modification time 0.
type file struct {
	path    string // without a slash at its beginning
	mode    int64
	content []byte
}

// layerOf returns a layer of one file and the folders above it.
func layerOf(f file) (v1.Layer, error) {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	for _, folder := range above(f.path) {
		if err := writer.WriteHeader(header(tar.TypeDir, folder+"/", 0o755, 0)); err != nil {
			return nil, err
		}
	}
	if err := writer.WriteHeader(header(tar.TypeReg, f.path, f.mode, len(f.content))); err != nil {
		return nil, err
	}
	if _, err := writer.Write(f.content); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open,
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

func header(kind byte, name string, mode int64, size int) *tar.Header {
	return &tar.Header{Typeflag: kind, Name: name, Mode: mode, Size: int64(size), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
}

// above lists the folders above a file, the outermost first.
func above(name string) []string {
	folder := path.Dir(name)
	if folder == "." {
		return nil
	}
	return append(above(folder), folder)
}
