//! SQL text as tokens, lazily: just enough to find the verb of a logged statement and the tables it names.
//!
//! Comments are skipped, the inside of `/*! … */` is code, strings are opaque. It is no parser: what a statement means
//! is decided in `query.rs`, which stops when in doubt.

/// How the session that wrote a statement read its quotes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Quoting {
    /// `"x"` is an identifier.
    pub ansi_quotes: bool,
    /// `\` is an ordinary character in strings.
    pub no_backslash_escapes: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// An unquoted word or number, as written.
    Word(String),
    /// A quoted identifier, without its quotes.
    Quoted(String),
    /// A string literal; its content is never needed.
    Text,
    Symbol(u8),
}

impl Token {
    /// Whether it is this keyword; a quoted identifier never is.
    pub fn is(&self, keyword: &str) -> bool {
        matches!(self, Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// The name it stands for, when it can be one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Token::Word(name) | Token::Quoted(name) => Some(name),
            _ => None,
        }
    }
}

/// An iterator over the tokens of one statement.
#[derive(Debug, Clone)]
pub struct Tokens<'a> {
    rest: &'a [u8],
    quoting: Quoting,
    in_conditional: bool,
}

impl<'a> Tokens<'a> {
    pub fn new(sql: &'a [u8], quoting: Quoting) -> Self {
        Self { rest: sql, quoting, in_conditional: false }
    }

    /// The text behind the last token.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn skip_behind(&mut self, end: &[u8]) {
        let at = self.rest.windows(end.len()).position(|window| window == end);
        self.skip(at.map_or(self.rest.len(), |at| at + end.len()));
    }

    /// Skips white space and comments; enters conditional comments.
    fn skip_blanks(&mut self) {
        loop {
            match self.rest {
                [byte, ..] if byte.is_ascii_whitespace() || *byte == 0 => self.skip(1),
                [b'#', ..] => self.skip_behind(b"\n"),
                [b'-', b'-'] => self.skip(2),
                [b'-', b'-', next, ..] if *next <= b' ' => self.skip_behind(b"\n"),
                [b'/', b'*', b'!', ..] => self.enter_conditional(3),
                [b'/', b'*', b'M', b'!', ..] => self.enter_conditional(4),
                [b'/', b'*', ..] => {
                    self.skip(2);
                    self.skip_behind(b"*/");
                }
                [b'*', b'/', ..] if self.in_conditional => {
                    self.in_conditional = false;
                    self.skip(2);
                }
                _ => return,
            }
        }
    }

    fn enter_conditional(&mut self, marker_bytes: usize) {
        self.skip(marker_bytes);
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.skip(digits);
        self.in_conditional = true;
    }

    /// Reads to the closing quote; a doubled quote stands for one.
    fn quoted(&mut self, quote: u8, backslash_escapes: bool) -> String {
        self.skip(1);
        let mut content = Vec::new();
        loop {
            match self.rest {
                [] => break,
                [first, second, ..] if *first == quote && *second == quote => {
                    content.push(quote);
                    self.skip(2);
                }
                [first, ..] if *first == quote => {
                    self.skip(1);
                    break;
                }
                [b'\\', ..] if backslash_escapes => self.skip(2),
                [first, ..] => {
                    content.push(*first);
                    self.skip(1);
                }
            }
        }
        String::from_utf8_lossy(&content).into_owned()
    }

    /// Like [`Self::quoted`], without keeping the content: strings may be megabytes long.
    fn skip_text(&mut self, quote: u8) {
        self.skip(1);
        loop {
            match self.rest {
                [] => return,
                [b'\\', ..] if !self.quoting.no_backslash_escapes => self.skip(2),
                [first, second, ..] if *first == quote && *second == quote => self.skip(2),
                [first, ..] => {
                    let is_end = *first == quote;
                    self.skip(1);
                    if is_end {
                        return;
                    }
                }
            }
        }
    }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        self.skip_blanks();
        let first = *self.rest.first()?;
        Some(match first {
            b'`' => Token::Quoted(self.quoted(b'`', false)),
            b'"' if self.quoting.ansi_quotes => Token::Quoted(self.quoted(b'"', false)),
            b'\'' | b'"' => {
                self.skip_text(first);
                Token::Text
            }
            byte if is_word(byte) => {
                let length = self.rest.iter().take_while(|byte| is_word(**byte)).count();
                let word = String::from_utf8_lossy(&self.rest[..length]).into_owned();
                self.skip(length);
                Token::Word(word)
            }
            symbol => {
                self.skip(1);
                Token::Symbol(symbol)
            }
        })
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(sql: &str, quoting: Quoting) -> String {
        let tokens = Tokens::new(sql.as_bytes(), quoting).map(|token| match token {
            Token::Word(word) => word,
            Token::Quoted(name) => format!("[{name}]"),
            Token::Text => "TEXT".to_owned(),
            Token::Symbol(symbol) => char::from(symbol).to_string(),
        });
        tokens.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_vanish_and_conditional_ones_are_code() {
        for (sql, expected) in [
            ("a /* b */ c -- d\ne # f\n g", "a c e g"),
            ("/*!40000 DROP */ /*M!100000 TABLE */ x", "DROP TABLE x"),
            ("DROP /*!50001 TABLE `a`*/ /* generated by server */", "DROP TABLE [a]"),
            ("a--b", "a - - b"),
            ("a /* never closed", "a"),
            ("a --", "a"),
        ] {
            assert_eq!(words(sql, Quoting::default()), expected, "{sql}");
        }
    }

    #[test]
    fn quotes_follow_the_sql_mode() {
        let ansi = Quoting { ansi_quotes: true, ..Quoting::default() };
        let plain = Quoting { no_backslash_escapes: true, ..Quoting::default() };
        assert_eq!(words("`a``b`.\"c\"", Quoting::default()), "[a`b] . TEXT");
        assert_eq!(words("`a``b`.\"c\"", ansi), "[a`b] . [c]");
        assert_eq!(words(r"'it\'s' x", Quoting::default()), "TEXT x");
        assert_eq!(words(r"'a\' x", plain), "TEXT x");
        assert_eq!(words("'it''s' x", Quoting::default()), "TEXT x");
        assert_eq!(words("db.001", Quoting::default()), "db . 001");
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes: Vec<u8>, ansi_quotes: bool, no_backslash_escapes: bool) {
            let count = Tokens::new(&bytes, Quoting { ansi_quotes, no_backslash_escapes }).count();
            prop_assert!(count <= bytes.len());
        }
    }
}
