package golden

import (
	"image"
	"image/color"
	"image/draw"
	"math/rand/v2"
	"testing"
)

var (
	background = color.RGBA{250, 250, 248, 255}
	panel      = color.RGBA{255, 255, 255, 255}
	line       = color.RGBA{228, 228, 223, 255}
	ink        = color.RGBA{29, 32, 33, 255}
	green      = color.RGBA{61, 154, 114, 255}
	blue       = color.RGBA{74, 131, 201, 255}
)

func fill(in draw.Image, at image.Rectangle, of color.Color) {
	draw.Draw(in, at, image.NewUniform(of), image.Point{}, draw.Src)
}

// newPage returns a picture with a button, with strokes like those of text, and with the edge of a tile in a color.
func newPage(button bool, tile color.Color) *image.RGBA {
	page := image.NewRGBA(image.Rect(0, 0, 203, 101))
	fill(page, page.Bounds(), background)
	if button {
		fill(page, image.Rect(101, 11, 161, 39), line)
		fill(page, image.Rect(102, 12, 160, 38), panel)
		for x := 112; x < 150; x += 4 {
			fill(page, image.Rect(x, 20, x+1, 30), ink)
		}
	}
	fill(page, image.Rect(21, 51, 26, 91), tile)
	return page
}

// TestDiffering_FindsVisibleDifferences checks that a missing button, another color, and another size count as differences, and that
// noise and a shifted stroke do not.
func TestDiffering_FindsVisibleDifferences(t *testing.T) {
	want := newPage(true, green)
	noisy := image.NewRGBA(want.Bounds())
	random := rand.New(rand.NewPCG(1, 1))
	for i, value := range want.Pix {
		if i%4 == 3 { // not the alpha channel
			noisy.Pix[i] = value
			continue
		}
		noisy.Pix[i] = uint8(max(0, min(255, int(value)+random.IntN(13)-6)))
	}
	stroke := newPage(true, green)
	fill(stroke, image.Rect(112, 20, 113, 30), panel)
	fill(stroke, image.Rect(113, 20, 114, 30), ink)
	for name, tc := range map[string]struct {
		got     image.Image
		differs bool
	}{
		"same":           {newPage(true, green), false},
		"noise":          {noisy, false},
		"shifted stroke": {stroke, false},
		"lost button":    {newPage(false, green), true},
		"other color":    {newPage(true, blue), true},
		"other size":     {newPage(true, green).SubImage(image.Rect(0, 0, 203, 90)), true},
	} {
		t.Run(name, func(t *testing.T) {
			if blocks := differing(want, tc.got); (len(blocks) > maxBlocks) != tc.differs {
				t.Errorf("%d blocks differ: %v", len(blocks), blocks)
			}
		})
	}
}

// TestReduced_KeepsVisibleColors checks that a picture with too many colors for a palette keeps the most frequent ones, and looks
// the same.
func TestReduced_KeepsVisibleColors(t *testing.T) {
	page := newPage(true, green)
	for x := range 200 {
		for y := range 5 {
			page.Set(x, y, color.RGBA{uint8(x), uint8(40 * y), 100, 255})
		}
	}
	got, ok := reduced(page).(*image.Paletted)
	if !ok || len(got.Palette) > 256 {
		t.Fatalf("%T with %d colors, want at most 256 in a palette", got, len(got.Palette))
	}
	for _, at := range []image.Point{{0, 50}, {110, 15}, {112, 25}, {22, 60}} {
		if colorAt(got, at.X, at.Y) != colorAt(page, at.X, at.Y) {
			t.Errorf("the color at %s changed", at)
		}
	}
	if blocks := differing(page, got); len(blocks) > 0 {
		t.Errorf("%d blocks differ", len(blocks))
	}
}
