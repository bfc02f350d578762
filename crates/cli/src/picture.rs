//! A trace as a picture: time runs to the right, a band for each lane, phases as bars, waits as hatched ones with a line
//! from what they waited for. SVG, with no script and nothing from elsewhere.

use std::fmt::Write;

use rekindle_protocol::daemon::{Operation, Trace};
use rekindle_protocol::worker::Phase;

use crate::show;

const WIDTH: f64 = 1200.0;
/// What the lanes' names take on the left.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const ROW: f64 = 26.0;
const BAR: f64 = 18.0;
/// Between lanes.
const GAP: f64 = 14.0;
/// About what a letter takes.
const LETTER: f64 = 6.2;
/// The thinnest bar that is still seen.
const THINNEST: f64 = 1.5;

const COLOURS: [&str; 6] = ["#4477aa", "#66a61e", "#cc6677", "#aa7733", "#7570b3", "#3aa6a0"];

/// The lanes of a trace, in the order in which they begin.
pub fn lanes(trace: &Trace) -> Vec<&str> {
    let mut lanes: Vec<&str> = Vec::new();
    for phase in &trace.phases {
        if !lanes.contains(&&*phase.lane) {
            lanes.push(&phase.lane);
        }
    }
    lanes
}

/// A phase with its place.
struct Bar<'a> {
    phase: &'a Phase,
    lane: usize,
    row: usize,
}

pub fn draw(name: &str, trace: &Trace) -> String {
    let lanes = lanes(trace);
    let end = trace.phases.iter().map(|phase| phase.start_us + phase.duration_us).max();
    let end = end.unwrap_or(0).max(trace.total_us).max(1);
    let scale = (WIDTH - LEFT - RIGHT) / end as f64;
    let at = |us: u64| LEFT + us as f64 * scale;
    let (bars, rows) = place(trace, &lanes, scale);
    let mut tops = Vec::new();
    let mut below = TOP;
    for rows in &rows {
        tops.push(below);
        below += *rows as f64 * ROW + GAP;
    }
    let mut out = String::new();
    let height = below + 30.0;
    let _ = write!(
        out,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">
<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#f4f4f4"/><rect width="2" height="6" fill="#b8b8b8"/></pattern></defs>
<rect width="100%" height="100%" fill="white"/>
<text x="12" y="24" font-size="15" font-weight="bold">{title}</text>
<text x="12" y="42" fill="#555">{subtitle}</text>
"##,
        title = escape(&title(name, trace)),
        subtitle = escape(&subtitle(trace)),
    );
    for tick in ticks(end) {
        let (x, bottom) = (at(tick), below);
        let _ = writeln!(
            out,
            r##"<line x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom:.1}" stroke="#e4e4e4"/><text x="{x:.1}" y="{:.1}" text-anchor="middle" fill="#777">{}</text>"##,
            bottom + 14.0,
            label_of(tick, end),
        );
    }
    for (lane, name) in lanes.iter().enumerate() {
        let y = tops[lane] + BAR / 2.0 + 4.0;
        let _ = writeln!(out, r##"<text x="12" y="{y:.1}" font-weight="bold">{}</text>"##, escape(name));
    }
    for bar in &bars {
        draw_bar(&mut out, bar, tops[bar.lane], at(bar.phase.start_us), scale);
    }
    for bar in bars.iter().filter(|bar| !bar.phase.waited_for.is_empty()) {
        for freed in bar.phase.waited_for.iter().filter_map(|lane| last_of(&bars, lane, bar.phase)) {
            let (x1, y1) = (at(freed.phase.start_us + freed.phase.duration_us), middle(freed, &tops));
            let (x2, y2) = (at(bar.phase.start_us + bar.phase.duration_us), middle(bar, &tops));
            let _ = writeln!(
                out,
                r##"<path d="M{x1:.1} {y1:.1} L{x2:.1} {y2:.1}" stroke="#333" stroke-dasharray="3 2" fill="none"/><circle cx="{x1:.1}" cy="{y1:.1}" r="2.5" fill="#333"/>"##
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

/// Gives every phase a row of its lane in which neither its bar nor its label lies over another.
fn place<'a>(trace: &'a Trace, lanes: &[&str], scale: f64) -> (Vec<Bar<'a>>, Vec<usize>) {
    let mut taken: Vec<Vec<f64>> = vec![Vec::new(); lanes.len()];
    let mut bars = Vec::new();
    for phase in &trace.phases {
        let Some(lane) = lanes.iter().position(|lane| *lane == phase.lane) else { continue };
        let start = phase.start_us as f64 * scale;
        let width = (phase.duration_us as f64 * scale).max(THINNEST);
        let inside = label(phase).chars().count() as f64 * LETTER + 8.0 <= width;
        let end = if inside { start + width } else { start + width + label_room(phase) };
        let rows = &mut taken[lane];
        let row = rows.iter().position(|until| *until <= start).unwrap_or(rows.len());
        if row == rows.len() {
            rows.push(end);
        } else {
            rows[row] = end;
        }
        bars.push(Bar { phase, lane, row });
    }
    (bars, taken.iter().map(|rows| rows.len().max(1)).collect())
}

fn draw_bar(out: &mut String, bar: &Bar<'_>, top: f64, x: f64, scale: f64) {
    let phase = bar.phase;
    let y = top + bar.row as f64 * ROW;
    let width = (phase.duration_us as f64 * scale).max(THINNEST);
    let fill = match phase.waited_for.is_empty() {
        true => COLOURS[bar.lane % COLOURS.len()],
        false => "url(#wait)",
    };
    let text = label(phase);
    let inside = text.chars().count() as f64 * LETTER + 8.0 <= width;
    let before = !inside && x + width + label_room(phase) > WIDTH;
    let (text_x, anchor) = match (inside, before) {
        (true, _) => (x + 4.0, "start"),
        (false, false) => (x + width + 4.0, "start"),
        (false, true) => (x - 4.0, "end"),
    };
    let colour = if inside && phase.waited_for.is_empty() { "white" } else { "#222" };
    let _ = writeln!(
        out,
        r##"<g><title>{}</title><rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{BAR}" rx="2" fill="{fill}"/><text x="{text_x:.1}" y="{:.1}" text-anchor="{anchor}" fill="{colour}">{}</text></g>"##,
        escape(&story(phase)),
        y + BAR / 2.0 + 4.0,
        escape(&text),
    );
}

/// The last phase of a lane that ended before the wait for it did.
fn last_of<'a, 'b>(bars: &'b [Bar<'a>], lane: &str, wait: &Phase) -> Option<&'b Bar<'a>> {
    let end = |phase: &Phase| phase.start_us + phase.duration_us;
    bars.iter()
        .filter(|bar| bar.phase.lane == lane && end(bar.phase) <= end(wait))
        .max_by_key(|bar| end(bar.phase))
}

fn middle(bar: &Bar<'_>, tops: &[f64]) -> f64 {
    tops[bar.lane] + bar.row as f64 * ROW + BAR / 2.0
}

fn title(name: &str, trace: &Trace) -> String {
    match trace.operation {
        Operation::Checkpoint => format!("Checkpoint of {name:?} to image {:?}", trace.image),
        Operation::Restore => format!("Restore of image {:?} as {name:?}", trace.image),
        Operation::Sleep => format!("{name:?} falls asleep at level {}", trace.image),
        Operation::Wake => format!("{name:?} wakes from level {}", trace.image),
        Operation::Migrate => format!("{name:?} moves to {}", trace.image),
    }
}

fn subtitle(trace: &Trace) -> String {
    let all = show::milliseconds(trace.total_us);
    let stopped = match trace.operation {
        Operation::Checkpoint | Operation::Migrate => {
            format!(", the program stood still for {} ms", show::milliseconds(trace.stopped_us))
        }
        Operation::Restore | Operation::Sleep | Operation::Wake => String::new(),
    };
    let problem = trace.problem.iter().map(|problem| format!(" — failed: {problem}")).collect::<String>();
    format!("{}: {all} ms in all{stopped}{problem}", trace.began)
}

fn label(phase: &Phase) -> String {
    format!("{} {}", phase.name, show::milliseconds(phase.duration_us))
}

fn label_room(phase: &Phase) -> f64 {
    label(phase).chars().count() as f64 * LETTER + 10.0
}

/// All that is known of a phase.
fn story(phase: &Phase) -> String {
    let (from, took) = (show::milliseconds(phase.start_us), show::milliseconds(phase.duration_us));
    let size = if phase.bytes > 0 { format!(", {}", show::bytes(phase.bytes)) } else { String::new() };
    let waited = match phase.waited_for.is_empty() {
        true => String::new(),
        false => format!(", waited for: {}", phase.waited_for.join(", ")),
    };
    format!("{}: {}: from {from} ms, took {took} ms{size}{waited}", phase.lane, phase.name)
}

/// Round times between 0 and the end, about ten of them.
fn ticks(end: u64) -> impl Iterator<Item = u64> {
    let step = [1, 2, 5].map(|digit| {
        let mut step = digit;
        while end / step > 10 {
            step *= 10;
        }
        step
    });
    let step = step.into_iter().min().unwrap_or(1);
    (0..=end / step).map(move |number| number * step)
}

fn label_of(us: u64, end: u64) -> String {
    if end > 20_000_000 {
        format!("{} s", us / 1_000_000)
    } else if end > 10_000 {
        format!("{} ms", us / 1000)
    } else {
        format!("{us} µs")
    }
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML has no way to write these.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(lane: &str, name: &str, start_us: u64, duration_us: u64, waited_for: &[&str]) -> Phase {
        Phase {
            lane: lane.into(),
            name: name.into(),
            start_us,
            duration_us,
            waited_for: waited_for.iter().map(|lane| lane.to_string()).collect(),
            ..Phase::default()
        }
    }

    fn trace(phases: Vec<Phase>) -> Trace {
        Trace {
            operation: Operation::Restore,
            image: "<i>".into(),
            began: "now".into(),
            total_us: 1000,
            stopped_us: 0,
            problem: None,
            phases,
            memory: Vec::new(),
            waited: Vec::new(),
            written: None,
        }
    }

    #[test]
    fn a_wait_is_tied_to_what_ended_it() {
        let trace = trace(vec![
            phase("a", "one", 0, 10, &[]),
            phase("b", "load", 0, 700, &[]),
            phase("a", "wait", 10, 700, &["b"]),
            phase("b", "later", 900, 100, &[]),
        ]);
        let picture = draw("a&b", &trace);
        assert_eq!(picture.matches("<path").count(), 1);
        assert!(
            picture.contains("url(#wait)") && picture.contains("a&amp;b") && picture.contains("&lt;i&gt;")
        );
        assert!(!picture.contains("<i>"));
    }

    #[test]
    fn bars_that_overlap_lie_in_rows_of_their_own() {
        let trace = trace(vec![
            phase("a", "one", 0, 500, &[]),
            phase("a", "two", 100, 500, &[]),
            phase("a", "three", 990, 1, &[]),
        ]);
        let (bars, rows) = place(&trace, &lanes(&trace), 1.0);
        assert_eq!(bars.iter().map(|bar| bar.row).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(rows, [2]);
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(37).collect::<Vec<_>>(), [0, 5, 10, 15, 20, 25, 30, 35]);
        assert_eq!(ticks(1).count(), 2);
        assert!(ticks(u64::MAX / 2).count() < 12);
    }
}
