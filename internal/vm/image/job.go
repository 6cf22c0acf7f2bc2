package image

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"time"
)

const (
	defaultPatience = 30 * time.Second
	// stallLimit is how long a server may be silent.
	stallLimit = 30 * time.Second

	firstDelay = 250 * time.Millisecond
	maxDelay   = 5 * time.Second
)

// Options are how to get content. The zero value is fine.
type Options struct {
	// Client makes the requests; nil stands for http.DefaultClient. Its CheckRedirect
	// is not used.
	Client *http.Client
	// QemuImg is the program qemu-img: a path, or a name to look for in PATH. Empty:
	// "qemu-img". It is needed for QCOW2 only.
	QemuImg string
	// Patience is how long to try again, without getting any further, when there is no
	// answer, a server error or half an answer. 0: 30 seconds; negative: not at all.
	Patience time.Duration
	// Progress is told, in order and from the calling goroutine, how many bytes behind
	// the URL are done, and how many there are, 0 if that is not known. It is called
	// often, and done goes back when an attempt starts over. Nil: it is not called.
	Progress func(done, total int64)
	// Trouble is told, in the same way, of each failure after which it may be tried
	// again, so that people need not wait for the end of Patience to learn of it. Nil: it
	// is not called.
	Trouble func(error)
}

// job is one call of WriteDisk or Fetch.
type job struct {
	location
	client   *http.Client
	qemuImg  string
	progress func(done, total int64)
	trouble  func(error)
	patience patience
}

func newJob(noun string, source Source, options Options) (*job, error) {
	where, err := source.parse(noun)
	if err != nil {
		return nil, err
	}
	j := &job{location: where, qemuImg: options.QemuImg, progress: options.Progress, trouble: options.Trouble}
	j.client = j.withRedirects(options.Client)
	if j.progress == nil {
		j.progress = func(int64, int64) {}
	}
	if j.trouble == nil {
		j.trouble = func(error) {}
	}
	j.patience.limit = options.Patience
	if options.Patience == 0 {
		j.patience.limit = defaultPatience
	}
	return j, nil
}

// try makes attempts, each from the start, until one has a result that will not pass by
// itself.
func (j *job) try(ctx context.Context, attempt func(context.Context) error) error {
	for {
		err := attempt(ctx)
		if ctx.Err() == nil && isPassing(err) && j.again(ctx, err) == nil {
			continue
		}
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%s: %w", j.subject, context.Cause(ctx))
		}
		return err
	}
}

// again tells of a failure, and waits for the next attempt if there is to be one.
func (j *job) again(ctx context.Context, failure error) error {
	j.trouble(failure)
	return j.patience.wait(ctx)
}

// verify compares the hash of all bytes behind the URL with the wanted one.
func (j *job) verify(hashed hash.Hash) error {
	if j.checksum == nil {
		return nil
	}
	if got := hashed.Sum(nil); !bytes.Equal(got, j.checksum) {
		return j.rejected("its checksum is sha256:%s, expected sha256:%s",
			hex.EncodeToString(got), hex.EncodeToString(j.checksum))
	}
	return nil
}

// errImpatient says that it is time to give up.
var errImpatient = errors.New("out of patience")

// patience spreads attempts over time. It begins anew with every byte further than any
// attempt before came; since content ends, so do the attempts.
type patience struct {
	limit time.Duration
	best  int64
	since time.Time // of the first failure without progress; zero: none yet
	delay time.Duration
}

func (p *patience) reached(offset int64) {
	if offset > p.best {
		p.best, p.since, p.delay = offset, time.Time{}, 0
	}
}

// wait returns nil when it is time for the next attempt.
func (p *patience) wait(ctx context.Context) error {
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	p.delay = min(max(2*p.delay, firstDelay), maxDelay)
	if now.Add(p.delay).Sub(p.since) > p.limit {
		return errImpatient
	}
	timer := time.NewTimer(p.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
