package experiment

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrape reads the needed metric families of a metrics page. It drops other families before parsing,
// because the page of an API server has 20,000 lines.
func scrape(ctx context.Context, client *http.Client, url string, needed map[string]bool) (families map[string]*dto.MetricFamily, err error) {
	err = get(ctx, client, url, func(body io.Reader) error {
		lines, err := neededLines(body, needed)
		if err != nil {
			return fmt.Errorf("reading %s: %w", url, err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err = parser.TextToMetricFamilies(lines)
		return err
	})
	return families, err
}

// get requests a page and calls read with the body of the response.
func get(ctx context.Context, client *http.Client, url string, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %s", url, response.Status)
	}
	return read(response.Body)
}

// neededLines returns the lines of the needed families, including their TYPE lines.
func neededLines(page io.Reader, needed map[string]bool) (io.Reader, error) {
	const maxLineBytes = 1 << 20
	var kept bytes.Buffer
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		line := lines.Bytes()
		if needed[family(string(line[:min(len(line), 200)]), needed)] {
			kept.Write(line)
			kept.WriteByte('\n')
		}
	}
	return &kept, lines.Err()
}

// family returns the metric family to which a line belongs, or "" for other comments than TYPE.
func family(line string, needed map[string]bool) string {
	if nameAndType, isType := strings.CutPrefix(line, "# TYPE "); isType {
		name, _, _ := strings.Cut(nameAndType, " ")
		return name
	}
	end := strings.IndexAny(line, "{ ")
	if end < 0 || line[0] == '#' {
		return ""
	}
	name := line[:end]
	if needed[name] {
		return name
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, has := strings.CutSuffix(name, suffix); has {
			return base
		}
	}
	return name
}
