package fields

import "strings"

// maxDistance is how many letters of an unknown name may differ from a known one that is
// suggested instead.
const maxDistance = 2

// nearest returns the name that was probably meant; empty if none is similar.
func nearest(name string, names []string) string {
	if len(name) > 64 {
		return ""
	}
	best, least := "", maxDistance+1
	for _, candidate := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < least && d < len(candidate) {
			best, least = candidate, d
		}
	}
	return best
}

// distance returns the number of letters to insert, remove or replace to get b from a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
