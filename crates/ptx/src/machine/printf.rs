//! Formatting as C's `printf` does it.

/// Where the values to be formatted come from.
pub(super) trait Arguments {
    type Error;
    /// The next value, of 4 or 8 bytes.
    fn next(&mut self, width: u8) -> Result<u64, Self::Error>;
    /// The bytes of a string argument.
    fn text(&mut self, address: u64) -> Result<Vec<u8>, Self::Error>;
}

/// No field is wider, whatever the program asks for.
const WIDEST: usize = 4096;

#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// The value has 8 bytes.
    long: bool,
    /// Bits of `hh` and `h`.
    short: u32,
}

impl Spec {
    /// `digits` with sign or prefix, filled up to the width.
    fn field(&self, sign: &str, digits: &str, zeros: bool, out: &mut Vec<u8>) {
        let length = sign.len() + digits.len();
        let fill = self.width.saturating_sub(length);
        if !self.left && !zeros {
            out.extend(std::iter::repeat_n(b' ', fill));
        }
        out.extend(sign.as_bytes());
        if !self.left && zeros {
            out.extend(std::iter::repeat_n(b'0', fill));
        }
        out.extend(digits.as_bytes());
        if self.left {
            out.extend(std::iter::repeat_n(b' ', fill));
        }
    }

    fn positive_sign(&self) -> &'static str {
        match (self.plus, self.space) {
            (true, _) => "+",
            (false, true) => " ",
            _ => "",
        }
    }

    fn integer(&self, sign: &str, mut digits: String, out: &mut Vec<u8>) {
        if let Some(precision) = self.precision {
            if precision == 0 && digits == "0" {
                digits.clear();
            }
            digits.insert_str(0, &"0".repeat(precision.saturating_sub(digits.len())));
        }
        self.field(sign, &digits, self.zero && self.precision.is_none(), out);
    }
}

/// The text, and the number of values in it.
pub(super) fn format<A: Arguments>(format: &[u8], arguments: &mut A) -> Result<(Vec<u8>, u32), A::Error> {
    let mut out = Vec::with_capacity(format.len() * 2);
    let mut count = 0;
    let mut rest = format.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut spec = Spec::default();
        while let Some(flag) = rest.next_if(|byte| b"-+ #0".contains(byte)) {
            match flag {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                _ => spec.zero = true,
            }
        }
        if rest.next_if_eq(&b'*').is_some() {
            let width = arguments.next(4)? as i32;
            spec.left |= width < 0;
            spec.width = (width.unsigned_abs() as usize).min(WIDEST);
        } else {
            while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
                spec.width = (spec.width * 10 + usize::from(digit - b'0')).min(WIDEST);
            }
        }
        if rest.next_if_eq(&b'.').is_some() {
            let mut precision = 0;
            if rest.next_if_eq(&b'*').is_some() {
                precision = (arguments.next(4)? as i32).max(0) as usize;
            }
            while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
                precision = precision * 10 + usize::from(digit - b'0');
                precision = precision.min(WIDEST);
            }
            spec.precision = Some(precision.min(WIDEST));
        }
        while let Some(length) = rest.next_if(|byte| b"hlLqjzt".contains(byte)) {
            match length {
                b'h' => spec.short = if spec.short == 16 { 8 } else { 16 },
                _ => spec.long = true,
            }
        }
        let Some(conversion) = rest.next() else {
            out.push(b'%');
            break;
        };
        if conversion == b'%' {
            out.push(b'%');
            continue;
        }
        count += 1;
        convert(&spec, conversion, arguments, &mut out)?;
    }
    Ok((out, count))
}

fn convert<A: Arguments>(
    spec: &Spec,
    conversion: u8,
    arguments: &mut A,
    out: &mut Vec<u8>,
) -> Result<(), A::Error> {
    let mut word = |signed: bool| {
        let value = arguments.next(if spec.long { 8 } else { 4 })?;
        let bits = match (spec.long, spec.short) {
            (true, _) => 64,
            (false, 0) => 32,
            (false, short) => short,
        };
        let shift = 64 - bits;
        Ok(if signed { (value << shift) as i64 >> shift } else { (value << shift >> shift) as i64 })
    };
    match conversion {
        b'd' | b'i' => {
            let value = word(true)?;
            let sign = if value < 0 { "-" } else { spec.positive_sign() };
            spec.integer(sign, value.unsigned_abs().to_string(), out);
        }
        b'u' => spec.integer("", (word(false)? as u64).to_string(), out),
        b'o' => {
            let value = word(false)? as u64;
            spec.integer(if spec.alternate && value != 0 { "0" } else { "" }, format!("{value:o}"), out);
        }
        b'x' => {
            let value = word(false)? as u64;
            spec.integer(if spec.alternate && value != 0 { "0x" } else { "" }, format!("{value:x}"), out);
        }
        b'X' => {
            let value = word(false)? as u64;
            spec.integer(if spec.alternate && value != 0 { "0X" } else { "" }, format!("{value:X}"), out);
        }
        b'c' => {
            let value = arguments.next(4)? as u8;
            let fill = std::iter::repeat_n(b' ', spec.width.saturating_sub(1));
            if spec.left {
                out.push(value);
                out.extend(fill);
            } else {
                out.extend(fill);
                out.push(value);
            }
        }
        b'p' => {
            let value = arguments.next(8)?;
            spec.field("", &if value == 0 { "(nil)".to_owned() } else { format!("{value:#x}") }, false, out);
        }
        b's' => {
            let address = arguments.next(8)?;
            let mut text = if address == 0 { b"(null)".to_vec() } else { arguments.text(address)? };
            text.truncate(spec.precision.unwrap_or(usize::MAX));
            let fill = std::iter::repeat_n(b' ', spec.width.saturating_sub(text.len()));
            if spec.left {
                out.extend(text);
                out.extend(fill);
            } else {
                out.extend(fill);
                out.extend(text);
            }
        }
        b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
            let value = f64::from_bits(arguments.next(8)?);
            let sign = if value.is_sign_negative() { "-" } else { spec.positive_sign() };
            let upper = conversion.is_ascii_uppercase();
            let mut digits = if value.is_finite() {
                magnitude(value.abs(), conversion.to_ascii_lowercase(), spec)
            } else if value.is_nan() {
                "nan".to_owned()
            } else {
                "inf".to_owned()
            };
            if upper {
                digits.make_ascii_uppercase();
            }
            spec.field(sign, &digits, spec.zero && value.is_finite(), out);
        }
        other => out.extend([b'%', other]),
    }
    Ok(())
}

fn magnitude(value: f64, conversion: u8, spec: &Spec) -> String {
    let precision = spec.precision.unwrap_or(6);
    match conversion {
        b'f' => format!("{value:.precision$}"),
        b'e' => scientific(value, precision),
        b'a' => hexadecimal(value),
        _ => {
            let precision = precision.max(1);
            let rounded = scientific(value, precision - 1);
            let exponent: i32 = rounded.split('e').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
            let text = if exponent < -4 || exponent >= precision as i32 {
                rounded
            } else {
                format!("{value:.*}", (precision as i32 - 1 - exponent).max(0) as usize)
            };
            if spec.alternate { text } else { without_zeros(&text) }
        }
    }
}

/// `1.5e+00`
fn scientific(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// Drops zeros at the end of the fraction.
fn without_zeros(text: &str) -> String {
    let (mantissa, exponent) = match text.split_once('e') {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let mantissa =
        if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { mantissa };
    match exponent {
        Some(exponent) => format!("{mantissa}e{exponent}"),
        None => mantissa.to_owned(),
    }
}

fn hexadecimal(value: f64) -> String {
    let bits = value.to_bits();
    let (lead, exponent) = match bits >> 52 & 0x7ff {
        0 if bits << 12 == 0 => (0, 0),
        0 => (0, -1022),
        stored => (1, stored as i32 - 1023),
    };
    let fraction = format!("{:013x}", bits & ((1 << 52) - 1));
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("0x{lead}{point}{fraction}p{exponent:+}")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Values<'v>(std::slice::Iter<'v, u64>);

    impl Arguments for Values<'_> {
        type Error = std::convert::Infallible;

        fn next(&mut self, _: u8) -> Result<u64, Self::Error> {
            Ok(self.0.next().copied().unwrap_or(0))
        }

        fn text(&mut self, _: u64) -> Result<Vec<u8>, Self::Error> {
            Ok(b"text".to_vec())
        }
    }

    fn print(text: &str, values: &[u64]) -> String {
        let Ok((out, _)) = format(text.as_bytes(), &mut Values(values.iter()));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn integers() {
        assert_eq!(print("%d|%5d|%-5d|%05d", &[-3i32 as u32 as u64, 42, 42, 42]), "-3|   42|42   |00042");
        assert_eq!(
            print("%u %x %#X %lld", &[u32::MAX as u64, 255, 255, -1i64 as u64]),
            "4294967295 ff 0XFF -1"
        );
        assert_eq!(print("%+d %.3d 100%%", &[7, 7]), "+7 007 100%");
    }

    #[test]
    fn floats() {
        let bits = |value: f64| value.to_bits();
        assert_eq!(
            print("%f %.2f %e", &[bits(1.5), bits(-2.345), bits(12345.678)]),
            "1.500000 -2.35 1.234568e+04"
        );
        assert_eq!(print("%g %g %g", &[bits(0.0001), bits(1e10), bits(100.0)]), "0.0001 1e+10 100");
        assert_eq!(
            print("%8.3f|%-8.1f|%a", &[bits(3.14214), bits(2.0), bits(1.0)]),
            "   3.142|2.0     |0x1p+0"
        );
        assert_eq!(print("%f %F", &[bits(f64::INFINITY), bits(f64::NAN)]), "inf NAN");
    }

    #[test]
    fn text_and_characters() {
        assert_eq!(
            print("[%s] [%6s] [%-6s] [%.2s] %c", &[1, 1, 1, 1, 65]),
            "[text] [  text] [text  ] [te] A"
        );
        assert_eq!(print("%p %s", &[0x1234, 0]), "0x1234 (null)");
    }
}
