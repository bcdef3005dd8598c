//! The plot of `millrace bench kv`: tokens per second by streams, a line for each KV format that ends where its pool is full. Knows
//! numbers and SVG 1.1; colours are readable on white and on dark grounds.

use std::fmt::Write as _;

use super::kv::{Capacity, Row};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 60.0;
const GREY: &str = "#808080";
const COLOURS: [&str; 2] = ["#d9822b", "#2b8ad9"];
/// Horizontal lines that a plot has at most.
const GRID_LINES: f64 = 6.0;

/// Where numbers lie: streams by their logarithm, since they double.
struct Axes {
    least: f64,
    most: f64,
    highest: f64,
}

impl Axes {
    fn new(rows: &[Row]) -> Self {
        let streams = rows.iter().map(|row| row.streams as f64);
        let rates = rows.iter().flat_map(|row| row.rates.iter().flatten()).map(super::spread::Spread::median);
        let (least, most) = (streams.clone().fold(f64::INFINITY, f64::min), streams.fold(1.0, f64::max));
        Self { least: least.min(most), most, highest: rates.fold(1.0, f64::max) * 1.05 }
    }

    fn x(&self, streams: usize) -> f64 {
        let span = (self.most / self.least).log2();
        let part = if span > 0.0 { (streams as f64 / self.least).log2() / span } else { 0.5 };
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, rate: f64) -> f64 {
        HEIGHT - BOTTOM - rate / self.highest * (HEIGHT - TOP - BOTTOM)
    }

    /// Round numbers from 0 on, few enough to read.
    fn grid(&self) -> impl Iterator<Item = f64> {
        let rough = self.highest / GRID_LINES;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let highest = self.highest;
        (0..).map(move |line| f64::from(line) * step).take_while(move |rate| *rate <= highest)
    }
}

/// The plot as a document of its own.
pub(super) fn svg(capacities: &[Capacity; 2], rows: &[Row]) -> String {
    let axes = Axes::new(rows);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" \
         fill=\"{GREY}\">\n<title>Decode throughput by streams in a KV pool of fixed size</title>\n"
    );
    for rate in axes.grid() {
        let y = axes.y(rate);
        let (end, label) = (WIDTH - RIGHT, LEFT - 8.0);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"{GREY}\" stroke-opacity=\"0.3\"/>\
             <text x=\"{label}\" y=\"{:.1}\" text-anchor=\"end\">{rate}</text>",
            y + 4.0
        );
    }
    for row in rows {
        let (x, y) = (axes.x(row.streams), HEIGHT - BOTTOM + 20.0);
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", row.streams);
    }
    let (middle, below) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16.0);
    let _ = writeln!(out, "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">streams</text>");
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">tokens/s</text>", TOP - 10.0);
    for (index, capacity) in capacities.iter().enumerate() {
        line(&mut out, &axes, (index, capacity), rows);
    }
    out.push_str("</svg>\n");
    out
}

/// A format's line, and at its end what it holds.
fn line(out: &mut String, axes: &Axes, (index, capacity): (usize, &Capacity), rows: &[Row]) {
    let points = rows.iter().filter_map(|row| Some((axes.x(row.streams), axes.y(row.rates[index].as_ref()?.median()))));
    let points: Vec<(f64, f64)> = points.collect();
    let Some(&(x, y)) = points.last() else { return };
    let colour = COLOURS[index];
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(out, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>", path.join(" "));
    for (x, y) in &points {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
    let full = rows.iter().any(|row| row.rates[index].is_none());
    let end = if full { "full behind this" } else { "not full" };
    let x = x + 10.0;
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}: {} tokens<tspan x=\"{x:.1}\" dy=\"16\">{end}</tspan></text>",
        y + 4.0,
        capacity.format,
        capacity.tokens()
    );
}

#[cfg(test)]
mod tests {
    use millrace_core::KvFormat;

    use super::super::spread::Spread;
    use super::*;

    fn capacities() -> [Capacity; 2] {
        [(KvFormat::Bf16, 10), (KvFormat::Fp8, 20)].map(|(format, pages)| Capacity { format, pages, page_bytes: 64 })
    }

    #[test]
    fn a_line_ends_where_its_pool_is_full() {
        let rates = |rate: f64| Some(Spread::new(vec![rate]));
        let rows = [
            Row { streams: 1, rates: [rates(100.0), rates(90.0)] },
            Row { streams: 2, rates: [rates(150.0), rates(160.0)] },
            Row { streams: 4, rates: [None, rates(300.0)] },
        ];
        let svg = svg(&capacities(), &rows);
        assert_eq!((svg.matches("<circle").count(), svg.matches("<polyline").count()), (5, 2), "{svg}");
        assert!(svg.contains("bf16: 320 tokens") && svg.contains("fp8: 640 tokens"), "{svg}");
        assert_eq!((svg.matches("full behind this").count(), svg.matches("not full").count()), (1, 1), "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn one_number_of_streams_or_nothing_that_fits_is_a_plot_all_the_same() {
        let one = [Row { streams: 8, rates: [None, Some(Spread::new(vec![0.0]))] }];
        assert!(!svg(&capacities(), &one).contains("NaN"));
        let none = [Row { streams: 8, rates: [None, None] }];
        assert!(svg(&capacities(), &none).ends_with("</svg>\n"));
    }
}
