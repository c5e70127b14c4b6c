package chart

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"strings"
)

var (
	//go:embed assets/echarts.min.js
	echarts string
	//go:embed assets/interactive.js
	interactive string
)

// Style is the CSS of the elements that HTML returns.
const Style = template.CSS(`.chart { width: 100%; height: 26em; margin: 1.5em 0; } .chart td { border: 0; padding: 0 .2em; font-size: 13px; }`)

// HTML returns the interactive charts of a page, and the scripts that draw them, for the body of the page. It
// must be called only once per page. It returns "" if there are no charts.
func HTML(charts ...Chart) (template.HTML, error) {
	if len(charts) == 0 {
		return "", nil
	}
	var out strings.Builder
	out.WriteString("<noscript><p>The charts need JavaScript; the same charts are in the SVG files of this directory, if it has any.</p></noscript>\n")
	for _, c := range charts {
		// json.Marshal escapes <, > and &, so the data cannot end the script element.
		data, err := json.Marshal(c)
		if err != nil {
			return "", fmt.Errorf("encoding chart %q: %w", c.Heading(), err)
		}
		fmt.Fprintf(&out, "<div class=\"chart\"%s><script type=\"application/json\">%s</script></div>\n", height(c), data)
	}
	fmt.Fprintf(&out, "<script>%s</script>\n<script>%s</script>\n", echarts, interactive)
	return template.HTML(out.String()), nil
}

// height returns the style attribute of a bar chart, whose height depends on the number of bars, and "" for
// other charts.
func height(c Chart) string {
	bars, isBars := c.(*BarChart)
	if !isBars {
		return ""
	}
	return fmt.Sprintf(` style="height: %dpx"`, 110+30*len(bars.Bars))
}
