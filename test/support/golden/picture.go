package golden

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Pictures are compared by the average colors of their blocks. This ignores differences in the antialiasing of text, and colors
// that were rounded to the nearest color of a palette.
const (
	// block is the width and height of a block in pixels.
	block = 8
	// tolerance is how much a channel of a block's average color may differ, on a scale from 0 to 255.
	tolerance = 8
	// maxBlocks is how many blocks of a picture may differ. A character of text covers two to four.
	maxBlocks = 3
	// kept is how many colors of a picture its file always has.
	kept = 64
)

// Picture fails the test if a picture, as PNG, looks different from the file. It then saves the picture, and a copy of the file
// with the differing blocks marked, in a directory that the failure names.
func Picture(t *testing.T, file string, text []byte) {
	t.Helper()
	got, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := writePNG(file, reduced(got)); err != nil {
			t.Fatal(err)
		}
	}
	wantText, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := png.Decode(bytes.NewReader(wantText))
	if err != nil {
		t.Fatal(err)
	}
	if got.Bounds() != want.Bounds() {
		t.Errorf("%s (-update writes it): the picture has the size %s, want %s", file, got.Bounds().Size(), want.Bounds().Size())
	}
	blocks := differing(want, got)
	if len(blocks) <= maxBlocks {
		return
	}
	dir, err := os.MkdirTemp("", "millwright-pictures-")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, strings.TrimSuffix(filepath.Base(file), ".png"))
	if err := cmp.Or(writePNG(name+".actual.png", got), writePNG(name+".difference.png", marked(want, blocks))); err != nil {
		t.Fatal(err)
	}
	t.Errorf("%s (-update writes it): %d blocks of %d pixels differ, at most %d may: %s.actual.png, %s.difference.png", file, len(blocks), block, maxBlocks, name, name)
}

// differing returns the blocks whose average color differs, within the bounds of both pictures.
func differing(want, got image.Image) []image.Rectangle {
	var blocks []image.Rectangle
	bounds := want.Bounds().Union(got.Bounds())
	for y := bounds.Min.Y; y < bounds.Max.Y; y += block {
		for x := bounds.Min.X; x < bounds.Max.X; x += block {
			at := image.Rect(x, y, x+block, y+block).Intersect(bounds)
			a, b := average(want, at), average(got, at)
			for i := range a {
				if max(a[i], b[i])-min(a[i], b[i]) > tolerance {
					blocks = append(blocks, at)
					break
				}
			}
		}
	}
	return blocks
}

// average returns the average color in a rectangle, with channels from 0 to 255. Pixels outside of the picture are black.
func average(of image.Image, in image.Rectangle) (channels [3]float64) {
	for y := in.Min.Y; y < in.Max.Y; y++ {
		for x := in.Min.X; x < in.Max.X; x++ {
			r, g, b, _ := of.At(x, y).RGBA()
			for i, value := range []uint32{r, g, b} {
				channels[i] += float64(value) / 0x101 / float64(in.Dx()*in.Dy())
			}
		}
	}
	return channels
}

// marked returns a picture in which blocks are red.
func marked(of image.Image, blocks []image.Rectangle) image.Image {
	result := image.NewRGBA(of.Bounds())
	draw.Draw(result, of.Bounds(), of, of.Bounds().Min, draw.Src)
	for _, at := range blocks {
		draw.Draw(result, at, image.NewUniform(color.NRGBA{R: 255, A: 160}), image.Point{}, draw.Over)
	}
	return result
}

// reduced returns a picture with at most 256 colors, which makes its file smaller. It keeps the most frequent colors, which fill
// areas, and rounds other colors, which occur at antialiased edges, as little as necessary.
func reduced(of image.Image) image.Image {
	counts := map[color.RGBA]int{}
	bounds := of.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[colorAt(of, x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	palette, indices := color.Palette(nil), map[color.RGBA]int{}
	for mask := uint8(0xff); palette == nil || len(palette) > 256; mask <<= 1 {
		palette, indices = nil, map[color.RGBA]int{}
		rounded := map[color.RGBA]int{}
		for i, from := range frequent {
			to := color.RGBA{from.R & mask, from.G & mask, from.B & mask, 255}
			if _, exists := rounded[to]; !exists || i < kept {
				rounded[to] = len(palette)
				palette = append(palette, from)
			}
			indices[from] = rounded[to]
		}
	}
	result := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			result.SetColorIndex(x, y, uint8(indices[colorAt(of, x, y)]))
		}
	}
	return result
}

func colorAt(of image.Image, x, y int) color.RGBA {
	return color.RGBAModel.Convert(of.At(x, y)).(color.RGBA)
}

func writePNG(file string, of image.Image) error {
	var text bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&text, of); err != nil {
		return err
	}
	return os.WriteFile(file, text.Bytes(), 0o600)
}
