// Draws each element of class "chart" with ECharts, from the JSON of its script element:
// a LineChart or a BarChart of the Go package chart.
(function () {
  'use strict';
  // The same colors as in the static charts (svg.go).
  const lineColors = ['#326ce5', '#b00020', '#1b8a3a', '#c77c02', '#7b2cbf', '#008b9a', '#8a5a44', '#666666'];
  const markerColors = ['#009000', '#d00000', '#e68a00', '#9400d3'];
  const [good, bad] = lineColors;

  // The same format as number.Text in Go: three digits, or all digits before the point.
  function text(value) {
    if (value === null || value === undefined || isNaN(value)) return '–';
    const size = Math.abs(value);
    if (size < 99.95 && !Number.isInteger(value)) return String(Number(value.toPrecision(3)));
    const whole = Math.round(value);
    return size < 10000 ? String(whole) : whole.toLocaleString('en-US');
  }

  function escape(name) {
    return String(name).replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);
  }

  function axis(name, logarithmic) {
    return {
      type: logarithmic ? 'log' : 'value', name, nameLocation: 'middle', scale: false,
      axisLabel: { formatter: text, hideOverlap: true }, minorSplitLine: { show: logarithmic },
    };
  }

  // Rows of a tooltip, sorted by value, at the X value of the mouse.
  function tooltip(chart) {
    return function (items) {
      const rows = items.filter((item) => item.value && item.value[1] !== null)
        .sort((a, b) => b.value[1] - a.value[1])
        .map((item) => `<tr><td>${item.marker} ${escape(item.seriesName)}<td style="text-align:right;padding-left:1em"><b>${text(item.value[1])}</b> ${escape(chart.yLabel)}`);
      return rows.length ? `${text(items[0].value[0])} ${escape(chart.xLabel)}<table>${rows.join('')}</table>` : '';
    };
  }

  // The points of all segments, with an empty point between two segments.
  function points(line) {
    return line.segments.flatMap((segment, i) => (i ? [[segment[0][0], null], ...segment] : segment));
  }

  function lineSeries(line, i) {
    const data = points(line);
    return {
      type: 'line', name: line.name, data, showSymbol: data.length < 30, symbolSize: 6, symbol: 'circle',
      color: lineColors[i % lineColors.length], emphasis: { focus: 'series' },
      lineStyle: { width: 1.8, type: i < lineColors.length ? 'solid' : 'dashed' },
    };
  }

  // Each marker is a series without points, so that the legend turns it on and off.
  function markerSeries(marker, i) {
    const color = markerColors[i % markerColors.length];
    return {
      type: 'line', name: marker.name, data: [], color, symbol: 'none', lineStyle: { type: 'dashed', width: 1 },
      markLine: {
        symbol: 'none', silent: true, label: { show: false }, lineStyle: { color, type: 'dashed' }, data: [{ xAxis: marker.x }],
      },
    };
  }

  function range(chart, coordinate) {
    const values = chart.lines.flatMap((line) => line.segments.flat().map((p) => p[coordinate]));
    if (!coordinate) values.push(...(chart.markers || []).map((m) => m.x));
    return values.reduce(([least, most], v) => [Math.min(least, v), Math.max(most, v)], [Infinity, -Infinity]);
  }

  function lineOption(chart) {
    const markers = chart.markers || [];
    const x = axis(chart.xLabel, chart.logX), y = axis(chart.yLabel, chart.logY);
    x.nameGap = 28;
    y.nameGap = 52;
    [x.min, x.max] = range(chart, 0);
    if (x.min === x.max) [x.min, x.max] = chart.logX ? [x.min / 2, x.max * 2] : [x.min - 1, x.max + 1];
    y.boundaryGap = [0, '6%'];
    return {
      title: { text: chart.title, left: 'center', textStyle: { fontSize: 16 } },
      grid: { left: 80, right: 240, top: 45, bottom: 95 },
      legend: { type: 'scroll', orient: 'vertical', right: 0, top: 45, bottom: 45, width: 235, textStyle: { width: 195, overflow: 'truncate' }, tooltip: { show: true } },
      tooltip: { trigger: 'axis', axisPointer: { type: 'cross', label: { formatter: (p) => text(p.value) } }, formatter: tooltip(chart), confine: true },
      toolbox: { right: 240, top: 0, feature: { dataZoom: { filterMode: 'none' }, restore: {}, saveAsImage: { title: 'save' } } },
      dataZoom: [{ type: 'inside', filterMode: 'none', zoomOnMouseWheel: 'ctrl', moveOnMouseWheel: false },
        { type: 'slider', filterMode: 'none', bottom: 12, height: 22, labelFormatter: text }],
      xAxis: x, yAxis: y,
      series: chart.lines.map(lineSeries).concat(markers.map(markerSeries)),
    };
  }

  function barOption(chart) {
    const targets = chart.bars.filter((bar) => bar.target).map((bar) => [bar.target, bar.name]);
    const series = [{
      type: 'bar', name: chart.xLabel, barWidth: 16, label: { show: true, position: 'right', formatter: (p) => text(p.value) },
      data: chart.bars.map((bar) => ({ value: bar.value, itemStyle: { color: bar.good ? good : bad } })),
      markLine: { symbol: 'none', silent: true, label: { show: false }, lineStyle: { color: '#000', type: 'solid' }, data: [{ xAxis: chart.reference }] },
    }];
    if (targets.length) {
      series.push({ type: 'scatter', name: 'aim', data: targets, symbolSize: 9, symbol: 'path://M1,0L5,4L9,0L10,1L6,5L10,9L9,10L5,6L1,10L0,9L4,5L0,1Z', color: '#000' });
    }
    const x = axis(chart.xLabel, false);
    x.nameGap = 28;
    return {
      title: { text: chart.title, left: 'center', textStyle: { fontSize: 16 } },
      grid: { left: 20, right: 60, top: 45, bottom: 45, containLabel: true },
      legend: { show: targets.length > 0, top: 22, right: 20, data: ['aim'] },
      tooltip: { trigger: 'item', formatter: (p) => (p.seriesType === 'scatter'
        ? `${escape(p.value[1])}: aim ${text(p.value[0])}` : `${escape(p.name)}: <b>${text(p.value)}</b> ${escape(chart.xLabel)}`) },
      xAxis: x, yAxis: { type: 'category', inverse: true, data: chart.bars.map((bar) => bar.name) },
      series,
    };
  }

  for (const element of document.querySelectorAll('.chart')) {
    const chart = JSON.parse(element.querySelector('script').textContent);
    const instance = echarts.init(element, null, { renderer: 'canvas' });
    instance.setOption(chart.bars ? barOption(chart) : lineOption(chart));
    window.addEventListener('resize', () => instance.resize());
  }
})();
