//! Splits SQL text into tokens, lazily: enough to find the verb of a logged statement and the tables that it names.
//!
//! Comments are skipped, the inside of `/*! … */` is code, strings are opaque. This is no parser: `query.rs` decides on
//! the meaning of a statement, and counts a doubtful one as unknown.

/// The rules for quotes and characters in the session that wrote a statement.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Quoting {
    /// `"x"` is an identifier.
    pub ansi_quotes: bool,
    /// `\` is an ordinary character in strings.
    pub no_backslash_escapes: bool,
    pub characters: Characters,
}

/// The rule by which bytes of a statement form characters. In most character sets a byte that looks like a quote or `\`
/// is one.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Characters {
    #[default]
    Plain,
    /// Big5, in which the second byte of a character may be `\`, `` ` ``, `{` or a letter, as in the next sets.
    Big5,
    /// SJIS and CP932.
    Sjis,
    Gbk,
    Gb18030,
}

impl Characters {
    /// Returns the characters of a `character_set_client`, which Query events give as the number of one of its
    /// collations.
    pub fn of_collation(number: u64) -> Self {
        /// A MariaDB collation without padding has the number of its sister with padding, plus this.
        const NO_PAD: u64 = 0x400;
        match number & !NO_PAD {
            1 | 84 => Self::Big5,
            13 | 88 | 95 | 96 => Self::Sjis,
            28 | 87 => Self::Gbk,
            248..=250 => Self::Gb18030,
            _ => Self::Plain,
        }
    }

    /// Returns the bytes of the first character; a byte that begins no character of the set counts as one, as in
    /// servers.
    fn length(self, text: &[u8]) -> usize {
        let (first, second) = match text {
            [first, second, ..] if *first >= 0x80 => (*first, *second),
            _ => return 1,
        };
        let is_pair = match self {
            Self::Plain => false,
            Self::Big5 => matches!(first, 0xa1..=0xf9) && matches!(second, 0x40..=0x7e | 0xa1..=0xfe),
            Self::Sjis => {
                matches!(first, 0x81..=0x9f | 0xe0..=0xfc) && matches!(second, 0x40..=0x7e | 0x80..=0xfc)
            }
            Self::Gbk | Self::Gb18030 => {
                matches!(first, 0x81..=0xfe) && matches!(second, 0x40..=0x7e | 0x80..=0xfe)
            }
        };
        match text {
            _ if is_pair => 2,
            [0x81..=0xfe, b'0'..=b'9', 0x81..=0xfe, b'0'..=b'9', ..] if self == Self::Gb18030 => 4,
            _ => 1,
        }
    }
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
    /// Whether the token is this keyword; a quoted identifier never is.
    pub fn is(&self, keyword: &str) -> bool {
        matches!(self, Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// Returns the name that the token stands for, if it can be one.
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

    /// Returns the text after the last token.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    fn skip_past(&mut self, end: &[u8]) {
        let at = self.rest.windows(end.len()).position(|window| window == end);
        self.skip(at.map_or(self.rest.len(), |at| at + end.len()));
    }

    /// Returns the bytes of the next character.
    fn character(&self) -> &'a [u8] {
        &self.rest[..self.quoting.characters.length(self.rest)]
    }

    /// Skips white space and comments; enters conditional comments.
    fn skip_blanks(&mut self) {
        loop {
            match self.rest {
                [byte, ..] if byte.is_ascii_whitespace() || *byte == 0 => self.skip(1),
                [b'#', ..] => self.skip_past(b"\n"),
                [b'-', b'-'] => self.skip(2),
                [b'-', b'-', next, ..] if *next <= b' ' => self.skip_past(b"\n"),
                [b'/', b'*', b'!', ..] => self.enter_conditional(3),
                [b'/', b'*', b'M', b'!', ..] => self.enter_conditional(4),
                [b'/', b'*', ..] => {
                    self.skip(2);
                    self.skip_past(b"*/");
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
                _ => {
                    let character = self.character();
                    content.extend_from_slice(character);
                    self.skip(character.len());
                }
            }
        }
        String::from_utf8_lossy(&content).into_owned()
    }

    /// Skips to after the closing quote. It keeps no content, since strings may be megabytes long.
    fn skip_text(&mut self, quote: u8) {
        self.skip(1);
        loop {
            match self.rest {
                [] => return,
                [b'\\', ..] if !self.quoting.no_backslash_escapes => self.skip(2),
                [first, second, ..] if *first == quote && *second == quote => self.skip(2),
                [first, ..] => {
                    let is_end = *first == quote;
                    self.skip(self.character().len());
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
                let start = self.rest;
                while self.rest.first().is_some_and(|byte| is_word(*byte)) {
                    self.skip(self.character().len());
                }
                let length = start.len() - self.rest.len();
                Token::Word(String::from_utf8_lossy(&start[..length]).into_owned())
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

    #[test]
    fn the_second_byte_of_a_character_is_no_quote_and_no_backslash() {
        const SETS: [(Characters, &[u8]); 4] = [
            (Characters::Gbk, b"\xbf"),
            (Characters::Big5, b"\xa5"),
            (Characters::Sjis, b"\x95"),
            (Characters::Gb18030, b"\x810\x810\x81"),
        ];
        let count = |sql: &[u8], characters| {
            Tokens::new(sql, Quoting { characters, ..Quoting::default() }).collect::<Vec<_>>()
        };
        let x = || Token::Word("x".to_owned());
        for (set, lead) in SETS {
            let text = [b"'", lead, b"\\' x"].concat();
            assert_eq!(count(&text, set), [Token::Text, x()], "{set:?}");
            assert_eq!(count(&text, Characters::Plain).len(), 1, "read byte by byte, the string has no end");
            // The next two texts have a quoted and an unquoted name.
            assert_eq!(count(&[b"`", lead, b"`x`.x"].concat(), set)[2], x(), "{set:?}");
            assert_eq!(count(&[lead, b"`.x"].concat(), set)[2], x(), "{set:?}");
            // Half of a character is none: servers take the quote as a quote.
            assert_eq!(count(&[b"'", lead, b"' x"].concat(), set), [Token::Text, x()], "{set:?}");
        }
        for (collation, set) in [(28, SETS[0].0), (1, SETS[1].0), (1120, SETS[2].0), (248, SETS[3].0)] {
            assert_eq!(Characters::of_collation(collation), set, "{collation}");
        }
        for (name, plain) in [("latin1", 8), ("utf8mb4", 45), ("gb2312", 24), ("euckr", 19), ("ujis", 12)] {
            assert_eq!(Characters::of_collation(plain), Characters::Plain, "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(
            bytes: Vec<u8>,
            ansi_quotes: bool,
            no_backslash_escapes: bool,
            collation in prop_oneof![Just(8u64), Just(1), Just(13), Just(28), Just(248)],
        ) {
            let characters = Characters::of_collation(collation);
            let quoting = Quoting { ansi_quotes, no_backslash_escapes, characters };
            let count = Tokens::new(&bytes, quoting).count();
            prop_assert!(count <= bytes.len());
        }
    }
}
