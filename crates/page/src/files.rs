//! What the browser loads, as it lies in `files`.

/// A file's content, and what it is.
#[derive(Clone, Copy)]
pub struct File {
    pub text: &'static str,
    pub kind: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// The file at a path.
pub fn find(path: &str) -> Option<File> {
    let (text, kind) = match path {
        "/" => (include_str!("../files/index.html"), HTML),
        "/page.css" => (include_str!("../files/page.css"), CSS),
        "/icon.svg" => (include_str!("../files/icon.svg"), PICTURE),
        "/page.js" => (include_str!("../files/page.js"), SCRIPT),
        "/dom.js" => (include_str!("../files/dom.js"), SCRIPT),
        "/words.js" => (include_str!("../files/words.js"), SCRIPT),
        "/services.js" => (include_str!("../files/services.js"), SCRIPT),
        "/timeline.js" => (include_str!("../files/timeline.js"), SCRIPT),
        "/gpus.js" => (include_str!("../files/gpus.js"), SCRIPT),
        "/tables.js" => (include_str!("../files/tables.js"), SCRIPT),
        _ => return None,
    };
    Some(File { text, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that is loaded is there, and comes from here alone.
    #[test]
    fn files_load_only_what_is_there() {
        let mut seen = vec!["/".to_string()];
        let mut at = 0;
        while let Some(path) = seen.get(at).cloned() {
            let file = find(&path).unwrap_or_else(|| panic!("{path} is not there"));
            assert!(!file.text.contains("http://") || file.kind == PICTURE, "{path}");
            assert!(!file.text.contains("https://") && !file.text.contains("innerHTML"), "{path}");
            for part in file.text.split('"') {
                let is_file = [".js", ".css", ".svg"].iter().any(|ending| part.ends_with(ending));
                let loaded = part.strip_prefix('.').unwrap_or(part);
                if is_file && loaded.starts_with('/') && !seen.iter().any(|known| known == loaded) {
                    seen.push(loaded.to_string());
                }
            }
            at += 1;
        }
        assert_eq!(seen.len(), 10, "{seen:?}");
        assert!(find("/nothing").is_none());
    }
}
