# A model of the protocol of coupon days, to read and to run; nothing of the product needs it. It has a world of users,
# lanes, servers and persons, and a witness that checks each coupon. `docs/decisions/coupons.md` has what it showed.
#
# It needs python3 and no packages: `python3 coupon_chain_sim.py SEEDS [RULES [FIRST [SCENE [FILE]]]]`.
# RULES: `product` for the rules of the product, `none` for all rules of the lists below, or names of mutants and
# alternatives, joined by `+`; `product+fence` is the product without its fence. Without RULES it runs each mutant.
# SCENE: without one, a seed lives three years. A `storm` lives 9 days with many copies, restores, edits and changes of
# rules, and then 40 calm days. A `duel` has two open days and moving birthdays. `close`, `gap` and `late` are scripts,
# with 3,456, any number of, and 432 seeds. A negative number of SEEDS ends at the first fault.
#
# Each actor is a generator. The scheduler kills, freezes or wakes it at any `yield`. The code between two yields is one
# transaction, one packet of the issuing transaction, or one call. A granter inserts a missing row only when it issues
# it, and a chain of tokens keeps two issues in order. "The original" in comments is an earlier model without that
# chain; FILE plays a scene with such a model. The checks tolerate what the original tolerates, and four things more:
# each stands beside a comment that names the original, or speaks of drift.
# The model leaves out batches of several users, joint issues, unreadable sources, and a take-in that is killed.
import calendar, datetime, functools, importlib.util, pickle, random, sys, time
DAY, LIVE, KEEP, GAP, SHARDS, date = 1440, 30, 1440, 300, 4, datetime.date   # minutes: a day, a connection's life, the coupon system's memory; days: minimum gap
MUTANTS = {
    'no_reserve': 'the granter calls first and writes the ledger row afterwards, at once settled', 'reserve_after': 'the granter calls first, then reserves, then settles', 'look': 'the granter does not look at the source row',
    'key': 'the key lacks the occurrence', 'rekey': 'an unknown outcome is called again with a new key', 'is_sent': 'the mark in the birthday table is the gate', 'no_gap': 'the programme has no minimum gap',
    'gap_early': 'the gap is read at the reserve and not at the issue', 'gap_time': 'the gap runs from the time of the grant', 'barrier': 'the cohort is frozen without a barrier', 'queue': 'what was published counts as done',
    'open': 'the message decides the day, not the open run', 'inflight': 'noon takes young attempts for abandoned', 'leave': 'noon leaves every unfinished row alone, however old',
    'final': 'a refusal closes the occurrence, not the day', 'shared': 'solar and lunar years share one number', 'cas': 'a granter does not check that the row is still its own',
    'fence': 'a page of the cohort is not fenced by the revision of the run', 'deadline': 'a connection lives for ever, so a sleeper calls whenever it wakes',
    'negative': 'a negative answer counts as proof however old the first call is', 'blind': 'an abandoned call is not asked for; the granter looks and calls or refuses again',
    'pair': 'nobody compares the ledger with its register', 'late_pair': 'the register is written after the call', 'config': 'a retry sends the coupon of the present configuration',
    'policy': 'a change of the 29 February rule holds at once', 'today': 'the dispatcher runs only the present date', 'count': 'attempts and revisions are counted, so a restored server repeats them',
    'own_clock': 'the dispatcher trusts its own clock', 'literal': 'rows whose birthday is not the date are left out', 'fold': 'day 30 is not celebrated in a short month', 'no_late': 'noon reads the frozen cohort only',
    'no_catchup': 'nobody is caught up after the next reconciliation', 'once': 'each wave is published once and never swept', 'absent': 'a source row not found is a final refusal',
    'letter': 'a requeued letter of unknown outcome calls at once',
    # The rules of the chain. The issuing transaction is two packets: it locks the rows that stand and reads, then it writes.
    'moved': 'the issue does not compare the ledger token with the register that was read before', 'race': 'the last statement of the issue replaces the token without a comparison',
    'lock': 'the issue does not lock the rows that it reads', 'age': 'the issue inserts a row however old the read is', 'insert': 'the insert replaces a row of another attempt',
    'swap': 'a granter that loses the swap of the register calls', 'unlooked': 'a granter that loses the swap compares the tokens and does not look for its row',
    'behind': 'a granter takes a register that is behind for level and does not move it', 'still': 'a comparison counts although the register moved', 'pass': 'the dispatcher does not compare the ledger with its register',
    # The rules of the close. The sweep reads pages of three members; a later transaction closes.
    'sweep': 'a sweep closes a run whose ledger does not know it', 'close_token': 'the close does not compare the ledger with its register', 'cursor': 'a page is not fenced by the cursor of the run',
    'join': 'the sweep does not add a user whom only a row names',
    'second': 'the second reading of the members has the number of the first one (add confirm)',
    # The look at the close and at the insert. The product closes after a second reading instead (confirm).
    'close_all': 'the close looks only for rows of the day in flight, and not at each member again as the original does', 'close_rows': 'the close does not look for rows in flight (add close_all, which contains this look)',
    'run_now': 'the issue of a new row does not look whether the run is open, has the member and has the rules by which the granter judged'}
ALTERNATIVES = {'confirm': 'a second reading under a number of its own finds each member done before the close', 'run_member': 'the issue of a new row looks whether the run is open and at its rules, and not whether it has the member',
    'reserve_first': 'a new row is reserved in a transaction of its own, as in the original', 'run_open': 'the issue of a new row looks whether the run is open and has the member, and not at its rules',
    'run_rules': 'the issue of a new row looks at the rules of the run, and not whether it is open', 'begin_compares': 'the transaction that begins days compares the tokens too'}
RULES_OF = {'product': ('close_rows', 'close_all', 'confirm', 'run_member')}
@functools.lru_cache(None)
def lunar_calendar(start, variant):     # invents a lunar calendar: months of 29 or 30 days, a leap month where the year would begin too early
    r, out = random.Random(variant * 9973 + start), {}; day = date(start - 1, 1, 21).toordinal() + r.randrange(30)
    for year in range(start - 1, start + 5):
        months, lengths = [(m, False) for m in range(1, 13)], [r.choice((29, 30)) for _ in range(13)]
        if day + sum(lengths[:12]) < date(year + 1, 1, 21).toordinal(): m = r.randrange(1, 13); months.insert(m, (m, True))
        for (m, leap), n in zip(months, lengths):
            for d in range(1, n + 1): out[day] = (year, m, d, leap, n); day += 1
    return out
def tables(w, day, v, M=()):            # the birthday tables that a version of a programme reads on a date
    d, (y, m, n, leap, length) = date.fromordinal(day), w.lunar[day]; out = {('s', d.month, d.day)}
    if not calendar.isleap(d.year) and (d.month, d.day) == {'feb28': (2, 28), 'mar1': (3, 1)}[v['feb']]: out.add(('s', 2, 29))
    if 'l' in v['calendars'] and not leap: out |= {('l', m, n)} | ({('l', m, 30)} if n == length == 29 and 'fold' not in M else set())
    return out
def celebrates(row, names):             # the calendar by which a source row celebrates the date, or None
    cal = row[2] or 's'; d = row[0] if cal == 's' else row[1]; return cal if d and (cal,) + d in names else None
def occurrence(w, cal, day, M=()):
    year = date.fromordinal(day).year if cal == 's' else w.lunar[day][0]; return year if 'shared' in M else (cal, year)
def places(row): return [t for t in ((('s',) + row[0]) if row[0] else None, (('l',) + row[1]) if row[1] else None) if t] if row else []
class Coupons:                          # the coupon system; it forgets keys, its books forget nothing and are the witness
    def __init__(s, w): s.w, s.keys, s.books, s.used, s.down_until, s.keep = w, {}, [], {}, 0, w.r.choice((KEEP, KEEP, 10 ** 9))
    def down(s): return s.w.now < s.down_until
    def known(s, key): return key in s.keys and s.w.now - s.keys[key][0] < s.keep
    def ask(s, key): return None if s.down() else s.known(key)
    def call(s, key, coupon, what, token, by_hand):
        w, x = s.w, s.w.r.random(); user, p, cal, day = what; occ = occurrence(w, cal, day); s.used.setdefault((user, p, occ), set()).add(key)
        if len(s.used[user, p, occ]) > 1: w.fail('keyed anew', what)
        if s.down() or x < .13: return 'unknown' if s.down() or x > .08 else '429' if x < .05 else 'empty'       # nothing is done, and the caller knows that of 429 and of an empty pool
        if s.known(key) and s.keys[key][1] != coupon: return 'mismatch'
        if not s.known(key): s.keys[key] = (w.now, coupon); w.granted(what, occ, token, by_hand, coupon); s.books.append((user, p, cal, day, occ, w.now))
        return 'unknown' if x < .24 else 'ok'                    # it did the work and the answer is lost
class World:
    def __init__(s, seed, M):
        r = s.r = random.Random(seed); s.M, s.bad, s.year0 = M, {}, r.choice((2023, 2024, 2027, 2099)); s.lunar, s.now = lunar_calendar(s.year0, r.randrange(12)), date(s.year0, 1, 1).toordinal() * DAY - DAY
        s.hot = {'s': [(12, 31), (1, 1), (2, 28), (2, 29), (3, 1), (r.randrange(4, 12), 9)], 'l': [(12, 29), (12, 30), (1, 1), (r.randrange(2, 12), 30)]}
        s.src, s.hist, s.changed, s.moved = [{} for _ in range(SHARDS)], {}, {}, {}; s.log, s.pos, s.claim, s.tab, s.damaged, s.excused, s.mended, s.good_reconciliation, s.reconciled = [[], []], [0, 0], {}, {}, {}, {}, {}, 0, 0
        s.progs = [dict(zone=r.choice((0, 480, -300)), feb=r.choice(('feb28', 'mar1')), feb_of={}, coupon=1, calendars=r.choice(('sl', 'sl', 's')), cool=r.choice((0, 0, 20))) for _ in range(r.choice((1, 2)))]
        s.db = dict(ledger={}, refused={}, runs={}, pair=(0, None), chain=set(), next=[s.now // DAY + 1] * len(s.progs))    # one server holds it all, and somebody may restore it
        s.copies, s.register, s.token, s.restored, s.called, s.lost, s.stopped = [], 0, 0, 0, set(), False, None
        s.queue, s.archive, s.actors, s.asleep, s.later, s.dead_until, s.db_down, s.versions, s.closed, s.checked, s.at_restore, s.serial = [], [], [], [], [], 0, 0, {}, {}, set(), 0, 0
        s.procs, s.clean, s.aim, s.rows, s.rules = [{}, {}], True, False, 3, {}; s.letters, s.coupons, s.patience = set(), Coupons(s), r.choice((60, 600, 4000, 100 * DAY)); s.count = dict(granted=0, restores=0, noticed=0)
        for u in range(r.randrange(3, 6)): s.hist[u] = [(0, [])]; s.write(r.randrange(SHARDS), u, (s.some('s'), s.some('l') if r.random() < .7 else None, r.choice(('s', 's', 'l', None))))
    def fresh(s, row): s.serial += 1; return s.serial if 'count' not in s.M else row['att'] + 1 if row else 1                # attempts and revisions are unique for ever: a restored server would count the same numbers again
    def fail(s, kind, what): s.bad.setdefault(kind, (s.now // DAY, s.now % DAY, what))
    def some(s, cal):
        day = s.now // DAY + s.r.choice((-1, 0, 0, 1, 1, 2)); d = date.fromordinal(day); return s.r.choice(s.hot[cal]) if s.r.random() < .5 else (d.month, d.day) if cal == 's' else s.lunar[day][1:3]
    def write(s, shard, user, row):
        s.src[shard].pop(user, None); s.src[shard].update({user: row} if row else {}); s.log[shard % 2].append((shard, user, row)); s.hist[user].append((s.now, [x[user] for x in s.src if user in x]))
    def edit(s):
        r, u = s.r, s.r.choice(list(s.hist)); at = [i for i in range(SHARDS) if u in s.src[i]]; x = r.random()
        if len(at) != 1 or x >= .82 and s.moved.get(u) == s.now // DAY: return
        a, b, c = old = s.src[at[0]][u]; row = (s.some('s'), b, c) if x < .45 else (a, s.some('l'), c) if x < .6 else (a, b, 's' if c == 'l' else 'l') if x < .75 else (None, None, c) if x < .82 else old
        if x >= .82 or r.random() < .15:                         # a rename writes two shards, in either order, up to an hour apart
            s.moved[u] = s.now // DAY; new = r.choice([i for i in range(SHARDS) if i != at[0]]); pair = [(new, u, row), (at[0], u, None)][::r.choice((1, -1))]; s.write(*pair[0]); s.later.append((s.now + r.randrange(60), pair[1]))
        else: s.write(at[0], u, row)
        if row != old and old[:2] != (None, None): s.changed[u] = s.now
    def apply(s, source, n):
        for shard, u, row in s.log[source][s.pos[source]:s.pos[source] + n]:
            for t in places(s.claim.get((shard, u))):
                if t not in places(row): s.tab.get(t, {}).pop((shard, u), None)
            for t in places(row): s.tab.setdefault(t, {})[shard, u] = [row[2] or 's', t, s.tab.get(t, {}).get((shard, u), [0, 0, None])[2]]
            s.claim.pop((shard, u), None); s.claim.update({(shard, u): row} if row else {})
        s.pos[source] = min(len(s.log[source]), s.pos[source] + n)
    def reconcile(s):                                            # a good night reads both sides behind a barrier and mends what differs
        for i in (0, 1): s.apply(i, 10 ** 9)
        old, s.tab = s.tab, {}
        for (shard, u), row in s.claim.items():
            for t in places(row): s.tab.setdefault(t, {})[shard, u] = [row[2] or 's', t, old.get(t, {}).get((shard, u), [0, 0, None])[2]]
        s.mended.update({u: s.now for u in s.damaged}); s.damaged, s.good_reconciliation = {}, s.now
    def damage(s):
        r, u = s.r, s.r.choice(list(s.hist)); mine = [(t, k) for t in s.tab for k in s.tab[t] if k[1] == u]; s.damaged[u] = s.now
        if mine and r.random() < .6:                              # a row vanishes, or its type goes stale
            t, k = r.choice(mine); e = s.tab[t].pop(k)
            if r.random() < .4: s.tab[t][k] = ['l' if e[0] == 's' else 's'] + e[1:]
        else: c = r.choice('sl'); t = (c,) + s.some(c); s.tab.setdefault(t, {})[r.randrange(SHARDS), u] = [c, r.choice((t, (c, 6, 6))), None]   # or somebody leaves a stale, misplaced or doubled row
    def version(s, p, day):
        g = s.progs[p]; year = date.fromordinal(day).year; return dict(zone=g['zone'], calendars=g['calendars'], coupon=g['coupon'], cool=g['cool'], feb=g['feb'] if 'policy' in s.M else g['feb_of'].setdefault(year, g['feb']))
    def starts(s, k): return k[1] * DAY - s.versions[k]['zone']
    def granted(s, what, occ, token, by_hand, coupon):           # what the witness checks at each coupon
        user, p, cal, day = what; v = s.rules[token]; names = tables(s, day, v)                # the rules that the ledger had when it issued (the original: those of the run that was begun last)
        mine = [b for b in s.coupons.books if b[:2] == (user, p)]; s.count['granted'] += 1
        h = s.hist[user]; seen = [rows for i, (t, rows) in enumerate(h) if t <= s.now and (i + 1 == len(h) or h[i + 1][0] >= s.now - LIVE)]
        run, row, calm = s.db['runs'].get((p, day)), s.db['ledger'].get((user, p, occurrence(s, cal, day, s.M))), s.now > s.restored + 2 * LIVE
        wrong = {'granted twice': any(b[4] == occ for b in mine), 'two within the gap': any(b[4] != occ and abs(b[3] - day) < GAP for b in mine),
                 'another coupon': run and s.restored < s.starts((p, day)) and coupon != run['v']['coupon'], 'not the birthday': not any(celebrates(row, names) == cal for rows in seen for row in rows), 'too early': s.now < s.starts((p, day)), 'restore not noticed': token > s.at_restore and s.lost,
                 'run not open': calm and not by_hand and (run is None or run['closed'] and s.now > s.closed[p, day] + LIVE),
                 'the ledger ruled this call out': calm and not s.M & {'no_reserve', 'reserve_after', 'is_sent'} and (not row or row['state'] != 'issued')}
        for kind in wrong: wrong[kind] and s.fail(kind, what)
def young(w, row): return w.now < row['at'] + LIVE and not ('inflight' in w.M and row['state'] == 'issued')
def too_near(w, key, day, rows=None):    # the state of a row that is, or may become, a coupon less than the gap away, before or after
    if 'no_gap' in w.M: return None
    near = {row['state'] for (u, p, o), row in (w.db['ledger'] if rows is None else rows).items() if (u, p) == key[:2] and o != key[2] and (row['state'] != 'failed' or not row['known'])
            and (abs(w.now - row['at']) < GAP * DAY if 'gap_time' in w.M else abs(row['day'] - day) < GAP)}
    return next((x for x in ('settled', 'failed', 'issued') if x in near), None)
def settle(w, key, day, cal):           # positive proof settles at any time, whoever brings it, also where the row is gone
    row = w.db['ledger'].setdefault(key, dict(att=0, tries=0, t0=None, coupon=0, hand=False, known=True)); row.update(state='settled', day=day, cal=cal, at=w.now)
def noticed(w):                         # a granter or a dispatcher finds a ledger that is behind its register
    if w.clean: w.fail('false alarm', (w.register, w.db['pair']))
    if w.stopped is None: w.stopped = w.now; w.count['noticed'] += 1
def level(w):                           # reads the register, the tokens and the register again: the token of both, None while others issue, 'restored'
    g = w.register; yield
    (t, prev) = w.db['pair']; yield
    if w.register != g and 'still' not in w.M: return None
    if t == g or 'pair' in w.M: return t
    if prev != g: noticed(w); return 'restored'
    if 'behind' not in w.M:              # the last issuer died before it moved the register
        if w.register != g: return None
        w.register = t; yield
    return t
def granter(w, m, proc):                # carries one message through the steps; the message is a hint and proves nothing
    p, day, user, cal, wave = m; M, what, k, gone = w.M, (user, p, cal, day), (p, day), (user, p, day, cal); key = (user, p, occurrence(w, cal, day, M)); skip = M & {'no_reserve', 'reserve_after', 'is_sent'}
    L = lambda: w.db['ledger']; own = lambda: skip or row and ('cas' in M or row['att'] == att and row['state'] == 'reserved')
    def letter(row, known): row.update(state='failed', known=known, at=w.now); w.letters.add((key, day)); return 'ack'
    def take(row, run):                  # the pure decision of the read: a row to hold, or the end of the message
        hand = bool(row and row['hand'] and row['day'] == day)
        if 'open' not in M and run is None: return 'nak' if hand else 'ack'
        if 'open' not in M and not hand and (run['closed'] or (user, cal) not in run['members']): return 'ack'
        if row is None or row['state'] == 'refused' or row['state'] == 'failed' and row['known'] and row['day'] != day:   # the occurrence is free: no call for it was ever executed
            if row and row['state'] == 'refused' and not hand and 'final' in M: w.db['refused'][gone] = 9
            if w.db['refused'].get(gone, -1) >= wave and not hand: return 'ack'
            if 'gap_early' in M and too_near(w, key, day): w.db['refused'][gone] = wave; return 'ack'
            return dict(state='reserved', day=day, cal=cal, att=w.fresh(row), at=w.now, t0=None, tries=0, coupon=(run['v'] if run else w.versions[k])['coupon'], hand=hand, known=True)
        if row['state'] in ('settled', 'failed'): return 'ack'
        if row['day'] != day or young(w, row): return 'nak'      # another day, or an attempt that may still call, holds the occurrence
        return dict(row, att=w.fresh(row), at=w.now)
    if w.coupons.down(): return 'nak'                            # without a connection nothing is reserved
    conn = w.now; yield
    # Read without a lock: a missing row is only decided, and the issue writes it. Any other row is taken over by a transaction that decides again.
    run, row = w.db['runs'].get(k), L().get(key); v = run['v'] if run else w.versions[k]; named = tuple(run['members'].get((user, cal), ())) if run else (); new, read_at = row is None, w.now
    if skip:
        if 'open' not in M and not (row and row['hand'] and row['day'] == day) and (run is None or run['closed'] or (user, cal) not in run['members']): return 'ack'
        if any(e[2] == key[2] for t in w.tab.values() for (_, u), e in t.items() if u == user) if 'is_sent' in M else row and row['state'] == 'settled': return 'ack'
        row = dict(att=0, coupon=v['coupon'], tries=0, hand=False)
        if too_near(w, key, day) in ('settled', 'failed') or w.db['refused'].get(gone, -1) >= wave: w.db['refused'][gone] = wave; return 'ack'
    else:
        row = take(row, run)
        if isinstance(row, str): return row
        if not new or 'reserve_first' in M:
            yield; run, before = w.db['runs'].get(k), L().get(key); v = run['v'] if run else w.versions[k]; row = take(before, run); read_at = w.now
            if isinstance(row, str): return row
            if before and before['day'] != day: w.db['refused'].setdefault((user, p, before['day'], before['cal']), 9)
            new, L()[key] = False, row
    att, coupon = row['att'], row['coupon']; yield
    # Ask: an earlier attempt may have called, so the granter learns its outcome before it decides anything else.
    if not skip and row['state'] == 'issued' and (M & {'rekey', 'blind'} or 'letter' in M and row['hand']): row['state'] = 'reserved'
    if not skip and row['state'] == 'issued':
        known = w.coupons.ask(key); yield; row = L().get(key)
        if known: settle(w, key, day, cal); return 'ack'
        if known is None or not row or row['att'] != att or row['state'] != 'issued': return 'nak'
        if w.now - row['t0'] >= KEEP and 'negative' not in M: return letter(row, False)        # a system that has forgotten cannot deny, so a person decides
        row.update(state='reserved', t0=None, at=w.now); conn = w.now
        if row['tries'] >= 3: return letter(row, True)
    # Look: the granter reads the source tables that any claim of the user or the cohort names, on their primaries.
    shards = {s for t in w.tab for s, u in w.tab[t] if u == user} | set(named)
    rows = [w.src[s][user] for s in shards if user in w.src[s]]; ok = any(celebrates(x, tables(w, day, v)) == cal for x in rows) or 'look' in M
    ok &= not v['cool'] or w.now - w.changed.get(user, -10 ** 9) >= v['cool'] * DAY; w.aim = True; yield       # duels aim at these moments
    # Issue: the transaction begins only after the register was read, or from the token that this process wrote last. The first packet locks the rows that stand, and reads.
    for _ in range(20):
        g = proc.pop('token', None)
        if g is None: g = yield from level(w)
        if g == 'restored': return 'nak'
        if g is None: continue
        yield
        pair, epoch, now = w.db['pair'], w.count['restores'], w.now; seen = {x: dict(y) for x, y in L().items() if x[:2] == key[:2]}
        if pair[0] != g and not M & {'pair', 'moved'}: continue                                # another transaction has issued since
        if new and key not in seen and now >= read_at + LIVE and 'age' not in M: return 'nak'  # an attempt without a row ends by the age of its read
        run = w.db['runs'].get(k); shut = run is None or run['closed'] or (user, cal) not in run['members'] and 'run_member' not in M
        if new and key not in seen and 'run_now' not in M and (shut and 'run_rules' not in M or 'run_open' not in M and run is not None and run['v'] != v): return 'nak'
        yield
        # The second packet writes. A restore breaks the connection. The locks keep the rows that stand; the insert finds a row that is new, and the statement about the token another issue.
        if epoch != w.count['restores']: return 'nak'
        if 'lock' not in M and any(L().get(x) != y for x, y in seen.items()): continue
        if not skip:
            if new and key not in L() or new and 'insert' in M: L()[key] = row = dict(state='reserved', day=day, cal=cal, att=att, at=now, t0=None, tries=0, coupon=coupon, hand=False, known=True); inserted = True
            else: row, inserted = L().get(key), False
        if skip: inserted = False
        if not own(): return 'nak'
        if not ok and not rows and not skip and 'absent' not in M:                             # no row at all may be half a rename: it waits for the other half, and refuses after ten hours
            row['absent'] = row.get('absent') or now
            if now < row['absent'] + 600: return 'nak'
            if user in w.damaged: w.excused.setdefault(k, set()).add(user)                     # the night has proved the tables, and drift has hit them since
        near = None if 'gap_early' in M or skip or not ok else too_near(w, key, day, seen)     # of the rows that the first packet read
        if near == 'failed': w.letters.add((key, day))           # a day that a letter holds up becomes a letter too, so one person sees both
        if not ok or near in ('settled', 'failed'): w.db['refused'][gone] = wave; skip or row.update(state='refused', hand=False, absent=None); return 'ack'
        if near: return 'nak'                                    # an issued row may still come to nothing
        if w.db['pair'] != pair and not M & {'race', 'pair'}:    # the server rolls the transaction back, and it begins again
            if inserted: del L()[key]
            continue
        break
    else: return 'nak'
    w.token += 1; token = w.token; w.rules[token] = dict((w.db['runs'].get(k) or dict(v=w.versions[k]))['v'], feb=w.versions[k]['feb']); w.db['pair'] = (token, g); w.db['chain'].add(token); skip or row.update(state='issued', t0=now, at=now, absent=None); w.aim = True; yield
    if not M & {'pair', 'late_pair'}:
        if w.register == g: w.register = proc['token'] = token
        elif 'swap' not in M:                                    # another process has moved the register: it may know of this row, or of a ledger that lacks it
            for _ in range(20):
                g = yield from level(w)
                if g == 'restored': return 'nak'
                yield; x = L().get(key)
                if g is not None and w.db['pair'][0] == g and (skip or 'unlooked' in M or x and x['att'] == att and x['state'] == 'issued'): break
            else: return 'nak'
        yield
    # Call: the granter uses the connection that it opened before the look; the other side closes it when it grows old.
    if w.now - conn > LIVE and 'deadline' not in M: return 'nak'
    w.called.add(token); w.lost = w.lost or token not in w.db['chain']; sent = key[:2] if 'key' in M else key + (att,) if 'rekey' in M else key
    answer = w.coupons.call(sent, w.progs[p]['coupon'] if 'config' in M else coupon, what, token, row.get('hand')); w.aim = True; yield
    if 'late_pair' in M: w.register = token; yield
    if answer == 'ok':
        if 'reserve_after' in M: L().setdefault(key, dict(state='issued', day=day, cal=cal, att=1, at=w.now, t0=w.now, tries=0, coupon=1, hand=False, known=True)); yield
        settle(w, key, day, cal); yield
        for t in tables(w, day, v):
            for (_, u), e in w.tab.get(t, {}).items(): e[2] = key[2] if u == user else e[2]    # the mark in the birthday table follows the ledger
        return 'ack'
    if skip or not (row := L().get(key)) or row['att'] != att or row['state'] != 'issued': return 'nak'
    row['tries'] += answer != '429'
    if answer in ('429', 'empty'): row.update(state='reserved', t0=None, at=w.now)             # the coupon system promises that it did nothing
    if answer == 'mismatch' or row['tries'] >= 3: return letter(row, answer != 'unknown')
    return 'nak'
def done(w, k, user, cal, wave):        # a member is done when it has its coupon, a letter, or a refusal of the newest wave
    key = (user, k[0], occurrence(w, cal, k[1], w.M)); row = w.db['ledger'].get(key); mine = row and row['day'] == k[1]
    if row and row['state'] == 'failed' and not row['known']: w.letters.add((key, k[1]))       # a day that finds its occurrence held by a letter becomes a letter too
    return w.db['refused'].get((user, *k, cal), -1) >= wave and not (mine and row['state'] in ('reserved', 'issued')) or bool(row) and (row['state'] == 'settled' or row['state'] == 'failed' and (mine or not row['known']))
def in_flight(w, k, user, cal): row = w.db['ledger'].get((user, k[0], occurrence(w, cal, k[1], w.M))); return bool(row) and row['state'] in ('reserved', 'issued') and ('leave' in w.M or young(w, row))
def freeze(w, k):                       # wave 0 is midnight, 1 noon, 2 the catch-up; each adds the members that no earlier wave has
    run = w.db['runs'][k]; wave = run['wave']; rev = run['rev'] = w.fresh(dict(att=run['rev'])); alive = lambda fenced=True: run and not run['closed'] and run['wave'] == wave and (run['rev'] == rev or not fenced)
    if run['page'] == 0: run['asked'], run['behind'] = w.now, True
    target, behind = [len(x) for x in w.log], True; yield
    for _ in range(12):
        if 'barrier' in w.M or all(p >= t for p, t in zip(w.pos, target)): break
        yield
    else:
        if wave == 2: return                                     # the catch-up waits for its barrier; midnight and noon say that they lacked it, and go on
        behind = False                                           # each page carries it: the original asks for the same object, which a restore replaces
    names, today = tables(w, k[1], run['v'], w.M), date.fromordinal(k[1])
    for page in range(run['page'], 3):
        found = {}
        for t, (s, u), (kind, birthday, _) in [(t, *e) for t in names for e in w.tab.get(t, {}).items()]:                     # a row of another type, or misplaced, is no reason for a coupon
            if u % 3 == page and kind == t[0] and birthday == t and not ('literal' in w.M and t[0] == 's' and t[1:] != (today.month, today.day)): found.setdefault((u, t[0]), []).append(s)
        yield; run = w.db['runs'].get(k)
        if not alive('fence' not in w.M) or run['page'] != page and 'cursor' not in w.M: return     # each page is written in a transaction that checks the revision and the cursor
        for m, s in found.items():
            run['count'] += m not in run['members'] or run['rev'] != rev
            if wave == 0 or 'no_late' not in w.M: run['members'].setdefault(m, s)
        run['page'] = page + 1; run['behind'] &= behind; yield
    run = w.db['runs'].get(k)
    if not alive() or run['page'] != 3 and 'cursor' not in w.M: return
    run['wave'], run['page'] = wave + 1, 0; run['behind'] &= behind
    if wave == 2: w.excused.setdefault(k, set()).update(w.damaged, (u for u, at in w.mended.items() if at >= run['asked']))    # the original forgets rows that were mended between two pages
    for u, h in w.hist.items() if run['behind'] else ():         # behind a barrier, nobody may lack whose rows are sound and unchanged
        for row in h[-1][1] if h[-1][0] < run['asked'] and u not in w.damaged and w.mended.get(u, 0) < run['asked'] else []:
            c = celebrates(row, tables(w, k[1], run['v']))
            if c and (u, c) not in run['members']: w.fail('not in the frozen cohort', (k, u, wave))
    if run['count'] != len(run['members']): w.fail('count of the cohort', k)
def due(w, k, wave): noon = w.starts(k) + DAY // 2; return wave == 0 or wave == 1 and w.now >= noon or wave == 2 and (w.good_reconciliation >= noon + 600 or 'no_catchup' in w.M)
def dispatcher(w, p, skew):             # one pass of one process; the lease only saves work, so any number of passes may run, late ones too
    zone = w.progs[p]['zone']; today = ((w.now + skew if 'own_clock' in w.M else min(w.now, w.now + skew)) + zone) // DAY    # its own clock and the ledger server's have both reached the date
    if not w.M & {'pair', 'pass'}:
        g, pair = w.register, w.db['pair']                       # one step; `level` models a register that moves between two reads
        if g not in pair: noticed(w); return
    g = w.register; yield
    while w.db['next'][p] <= today:                              # every date in turn: none is skipped, none begins twice
        if 'begin_compares' in w.M and g not in w.db['pair']: return                           # another issue, or an older copy: a later pass begins the day
        d = today if 'today' in w.M else w.db['next'][p]; v, truth = dict(w.version(p, d), zone=zone), w.progs[p]['feb_of'].setdefault(date.fromordinal(d).year, w.progs[p]['feb'])
        w.db['runs'].setdefault((p, d), dict(v=v, rev=0, wave=0, page=0, members={}, count=0, closed=False, behind=True, asked=0, sent=set(), sweeps=[0]))
        w.versions[p, d] = dict(v, feb=truth); w.closed.pop((p, d), None); w.db['next'][p] = d + 1
        if w.now < w.starts((p, d)): w.fail('too early', (p, d))
        yield
    for k in sorted(x for x, run in w.db['runs'].items() if x[0] == p and not run['closed']):
        run = w.db['runs'].get(k)
        while run and not run['closed'] and run['wave'] < 3 and due(w, k, run['wave']):
            wave = run['wave']
            if wave == 2 and 'no_catchup' in w.M: run['wave'] = 3
            else: yield from freeze(w, k)
            if (run := w.db['runs'].get(k)) and run['wave'] == wave: break
        if not (run := w.db['runs'].get(k)) or run['closed'] or run['wave'] == 0: continue
        # The sweep: its number stands in the ledger. It reads members and rows of the day page by page (three, in duels one), and publishes the members less the ledger, less what is young.
        w.serial += 1; sweep = w.serial; run['sweeps'] = (run['sweeps'] + [sweep])[-16:]; wave, left, after, sent = run['wave'], 0, (-1, ''), run['sent']; pair = lambda m: (*m, 0 if 'queue' in w.M else wave); is_sent_before = lambda m: w.M & {'queue', 'once'} and pair(m) in sent
        while (run := w.db['runs'].get(k)) and (run['members'] or strangers(w, k)):            # an empty cohort costs no step
            yield
            if not (run := w.db['runs'].get(k)): break
            page = sorted(m for m in set(run['members']) | strangers(w, k) if m > after)[:w.rows]
            if not page: break
            states = [(m, m not in run['members'], done(w, k, *m, wave) or is_sent_before(m), in_flight(w, k, *m)) for m in page]; after = page[-1]
            for m, stranger, ended, flying in states:
                if stranger and 'join' not in w.M:
                    yield
                    if (run := w.db['runs'].get(k)) and m not in run['members']: run['members'][m] = []; run['count'] += 1
                left += not ended and not ('leave' in w.M and flying)
                if ended or flying: continue
                if sum(q[:4] == (*k, *m) for q in w.queue) < 2: w.queue.append((*k, *m, wave))
                sent.add(pair(m)); w.archive.append((*k, *m, wave)); yield
        # The second reading: the sweep found each member done, and the run gives it another number. A copy of the ledger with that number has all that the sweep found.
        if 'confirm' in w.M and not left and wave == 3:
            if run and run['members']: yield
            if not (run := w.db['runs'].get(k)) or run['closed'] or sweep not in run['sweeps'] and 'sweep' not in w.M: continue
            if 'second' not in w.M: w.serial += 1; run['sweeps'] = ([x for x in run['sweeps'] if x != sweep] + [w.serial])[-16:]; sweep = w.serial
            after, w.aim = (-1, ''), True
            while (run := w.db['runs'].get(k)) and not left and (run['members'] or strangers(w, k)):
                yield
                if not (run := w.db['runs'].get(k)): break
                page = sorted(m for m in set(run['members']) | strangers(w, k) if m > after)[:w.rows]
                if not page: break
                left += sum(m not in run['members'] or not done(w, k, *m, wave) for m in page); after = page[-1]
        # The close: the register was read after the members were, the report is stored, and then one transaction closes.
        g = w.register
        w.aim = True
        if run and run['members']: yield
        if left or wave != 3 or not may_close(w, k, sweep, g): continue
        w.aim = True
        if run and run['members']: yield                         # the report is stored
        if not may_close(w, k, sweep, g): continue
        run = w.db['runs'][k]; run['closed'], w.closed[k] = True, w.now; n = report(w, k)
        by_hand = any((key, k[1]) in w.letters or (row := w.db['ledger'].get(key)) and row['hand'] for key in ((u, p, occurrence(w, c, k[1], w.M)) for u, c in set(run['members']) | strangers(w, k)))
        (n['missed'] or n['in flight']) and not by_hand and w.fail('closed with somebody missed', (k, n))
def strangers(w, k): return {(u, row['cal']) for (u, q, o), row in w.db['ledger'].items() if (q, row['day']) == k} - set(w.db['runs'][k]['members'])
def may_close(w, k, sweep, g):
    run = w.db['runs'].get(k); M = w.M
    if not run or run['closed'] or sweep not in run['sweeps'] and 'sweep' not in M or g not in w.db['pair'] and not M & {'pair', 'close_token'}: return False
    if 'close_all' not in M and not M & {'queue', 'once', 'leave'}: return all(done(w, k, *m, 3) for m in set(run['members']) | strangers(w, k))
    return 'close_rows' in M or bool(M & {'queue', 'once', 'leave'}) or not any((q, row['day']) == k and row['state'] in ('reserved', 'issued') for (u, q, o), row in w.db['ledger'].items())
def report(w, k):                       # rows are counted by day from the ledger, members only where no row of the day stands
    run, (p, day) = w.db['runs'][k], k; n = dict.fromkeys(('granted', 'already', 'refused', 'failed', 'in flight', 'missed'), 0); held = set()
    for (u, q, o), row in w.db['ledger'].items():
        if q == p and row['day'] == day: n[dict(settled='granted', refused='refused', failed='failed').get(row['state'], 'in flight')] += 1; held.add((u, row['cal']))
    late = held - set(run['members']) if w.starts(k) < w.restored + 2 * DAY else ()            # after a restore, whoever only a row names joins at the next sweep
    for u, c in run['members']:
        row = w.db['ledger'].get((u, p, occurrence(w, c, day, w.M)))
        if (u, c) not in held: n['refused' if (u, p, day, c) in w.db['refused'] else 'already' if row and row['state'] != 'refused' else 'missed'] += 1
    if sum(n.values()) != run['count'] + len(late): w.fail('sums', (k, n, run['count']))
    return n
def person(w):                          # reads letters, decides by the books what nobody can ask, and takes in what a restored ledger lacks
    if w.stopped is not None and w.now > max(w.stopped, w.restored) + 2 * LIVE:
        for u, p, cal, day, occ, t in w.coupons.books: settle(w, (u, p, occurrence(w, cal, day, w.M)), day, cal)
        w.token += 1; w.register = w.token; w.db['pair'] = (w.token, None); w.stopped, w.lost, w.clean = None, False, True; w.db['chain'] |= w.called
    for key, row in list(w.db['ledger'].items()):
        u, p, cal, day = key[0], key[1], row['cal'], row['day']
        if row['state'] == 'failed' and w.now - row['at'] > max(w.patience, 2 * LIVE):
            if row['known']: row.update(state='refused', hand=True, tries=0); w.db['refused'].pop((u, p, day, cal), None)
            elif w.now - row['t0'] < KEEP or 'letter' in w.M: row.update(state='issued', tries=0, hand=True)
            elif any((b[0], b[1], b[4]) == (u, p, occurrence(w, cal, day)) for b in w.coupons.books): settle(w, key, day, cal)
            else: row['known'] = True
        if row['hand'] and row['state'] in ('refused', 'reserved', 'issued'): w.queue.append((p, day, u, cal, 9))
def restore(w):                         # somebody restores the ledger server from an older copy; the witness then judges by the rules of its runs (the original: by those of the run that was begun last)
    recent = [c for t, c in w.copies if w.now - t < 20 * DAY]
    if recent: w.db = pickle.loads(recent[-1] if w.r.random() < .7 else w.r.choice(recent)); w.restored, w.at_restore = w.now, w.token; w.versions.update({k: dict(x['v'], feb=w.versions[k]['feb']) for k, x in w.db['runs'].items()}); w.count['restores'] += 1; w.clean = False; w.lost = not w.called <= w.db['chain']
def step(w):
    r, x = w.r, w.r.random()
    for t, wr in [z for z in w.later if z[0] <= w.now]: w.later.remove((t, wr)); w.write(*wr)
    if w.now // DAY > w.reconciled and w.now % DAY >= 120: w.reconciled = w.now // DAY; r.random() < .75 and w.reconcile()            # the nightly reconciliation, three nights of four
    if x < .62 and w.actors:
        a = r.choice(w.actors)
        try:
            if w.now >= w.db_down: next(a[0]); return
            w.actors.remove(a)                                   # the ledger server is down: the process gives up where it stands
        except StopIteration as e:
            w.actors.remove(a)
            if a[1] and e.value == 'nak' and r.random() < .6: w.queue.append(a[1])
    elif x < .86:
        if x < .74 and len(w.actors) < 5 and w.now >= w.dead_until: w.actors.append((dispatcher(w, r.randrange(len(w.progs)), r.choice((0,) * 12 + (-900, 900, -DAY, DAY))), None))
        if x > .74 and w.queue and len(w.actors) < 6 and w.now >= w.dead_until: m = w.queue.pop(r.randrange(len(w.queue))); w.actors.append((granter(w, m, r.choice(w.procs)), m))
    elif x < .92: w.apply(r.randrange(2), r.randrange(1, 4))
    elif x < .926: w.edit()
    elif x < .931: w.damage()
    elif x < .947 and w.actors: a = w.actors.pop(r.randrange(len(w.actors))); a[1] and (w.queue.append(a[1]) if r.random() < .5 else r.random() < .05 and restore(w))                # somebody kills the process, and at times the ledger server with it
    elif x < .957 and w.actors: w.asleep.append(w.actors.pop(r.randrange(len(w.actors)))); w.procs[r.randrange(2)] = {}                       # the process freezes
    elif x < .967 and w.asleep: w.actors.append(w.asleep.pop(r.randrange(len(w.asleep))))                                                      # a frozen process wakes
    elif x < .979: w.queue = w.queue + [r.choice(w.queue)] if w.queue and r.random() < .3 else [] if r.random() < .3 else w.queue + ([r.choice(w.archive) for _ in range(2)] if w.archive else [])  # the queue doubles, loses all, or replays messages of any age
    elif x < .982: w.coupons.down_until = w.now + r.choice((90, 700, 900, 1900))
    elif x < .984 and r.random() < .6: w.copies = w.copies[-2:] + [(w.now, pickle.dumps(w.db))]
    elif x < .9855 and r.random() < .02: restore(w)
    elif x < .987: w.db_down = w.now + 60
    elif x < .988: w.dead_until = w.now + r.choice((120, 800, 2000, 4000)); w.actors = [a for a in w.actors if r.random() < .3]
    elif x < .992: g = r.choice(w.progs); y = r.random(); g.update(dict(coupon=g['coupon'] + 1) if y < .4 else dict(zone=r.choice((0, 60, 480, 840, -240, -300, -600))) if y < .7 else dict(feb=r.choice(('feb28', 'mar1'))) if y < .9 else dict(calendars=r.choice(('s', 'sl'))))
    else: person(w)
    y = r.random(); w.now += r.randrange(10, 150) if not w.actors and not w.queue and y < .6 or y > .93 else r.randrange(1, 8) if y > .75 else 0
def nobody(w, day): names = tables(w, day, dict(calendars='sl', feb='feb28')) | tables(w, day, dict(calendars='sl', feb='mar1')); return not any(w.tab.get(t) for t in names) and not any(t in names for s in w.src for row in s.values() for t in places(row))
def one_day(w):                         # a date near which nobody has a birthday is passed over in one step
    day = w.now // DAY; open_ = [(k, x) for k, x in w.db['runs'].items() if not x['closed']]
    if w.actors or w.queue or w.later or any(n < day for n in w.db['next']) or any(x['members'] or not nobody(w, k[1]) for k, x in open_) or not all(nobody(w, day + i) for i in (0, 1)):
        while w.now // DAY == day: step(w)
        return
    for k, x in open_: x['closed'], x['wave'], w.closed[k] = True, 3, w.now
    for i in (0, 1): w.apply(i, 10 ** 9)
    w.now = (day + 1) * DAY; w.db['next'] = [max(n, day + 1) for n in w.db['next']]
    w.r.random() < .03 and w.edit(); w.r.random() < .6 and person(w)
def check(w):                           # at the end of each year
    got, day0, books = {(b[0], b[1], b[4]) for b in w.coupons.books}, w.now // DAY, w.coupons.books
    for k, run in w.db['runs'].items():
        report(w, k)
        if not run['closed'] and w.now > max(w.starts(k), w.restored) + 15 * DAY and w.stopped is None and w.now > w.coupons.down_until + 3 * DAY: w.fail('never closed', (k, run['wave'], report(w, k)))
    for (u, p, o), row in w.db['ledger'].items() if w.stopped is None and not w.lost else ():
        has = (u, p, occurrence(w, row['cal'], row['day'])) in got
        if row['at'] < w.now - 4 * DAY and has != (row['state'] == 'settled') and (not has or row['state'] == 'refused' or row['state'] == 'failed' and row['known']) and (has or row['state'] == 'settled'): w.fail('ledger against books', (u, p, o, row))
    for p, day in [(p, d) for p in range(len(w.progs)) for d in range(min([k[1] for k in w.versions if k[0] == p], default=day0), day0 - 15) if (p, d) not in w.checked]:
        k = (p, day); w.checked.add(k); v = w.versions.setdefault(k, w.version(p, day)); lo, hi = w.starts(k), w.closed.get(k, w.starts(k) + 3 * DAY)    # a date without a run counts too
        names = tables(w, day, dict(v, feb=w.progs[p]['feb_of'].get(date.fromordinal(day).year, w.progs[p]['feb'])))
        for u, h in w.hist.items():
            said = {celebrates(row, names) for i, (t, rows) in enumerate(h) if t <= hi and (i + 1 == len(h) or h[i + 1][0] > lo) for row in rows}
            if len(said) != 1 or None in said: continue          # only who had this birthday from midnight to the end of the run must have the coupon
            cal = said.pop(); key = (u, p, occurrence(w, cal, day, w.M))
            excuse = (u, p, occurrence(w, cal, day)) in got or u in w.excused.get(k, ()) or w.stopped is not None or (key, day) in w.letters       # drift after the proof; a letter, which a person may requeue too late
            excuse |= v['cool'] > 0 and w.changed.get(u, 0) > lo - v['cool'] * DAY or any(b[:2] == (u, p) and abs(b[3] - day) < GAP for b in books)     # the rules of the programme
            excuse |= any(x[:2] == (u, p) and y['state'] in ('issued', 'failed') and abs(y['day'] - day) < GAP for x, y in w.db['ledger'].items())
            excuse |= w.mended.get(u, 0) >= lo and any(lo <= t <= hi and not rows for t, rows in h)                 # drift at one wave, and half of a rename at the others
            if not excuse: w.fail('missed', (u, p, day, cal, w.db['ledger'].get(key), w.db['runs'].get(k)))
def run(seed, M):
    w = World(seed, frozenset(M))
    for year in (1, 2, 3):
        while w.now < (date(w.year0 + year, 1, 1).toordinal() + (20 if year == 3 else 0)) * DAY and not w.bad: one_day(w)
        w.bad or check(w)
    return w
def storm(seed, M, S):                  # S is this model or another one with the same world
    w = S.World(seed, frozenset(M)); r, end = w.r, w.now + 9 * DAY; copies, restores, edits, rules = r.choice((.005, .03, .08)), r.choice((.001, .004, .012)), r.choice((.01, .04)), r.choice((0, 0, .002))
    for g in w.progs: g['cool'] = 0
    while w.now < end + 40 * DAY and not w.bad:
        if w.now < end:
            if r.random() < copies: w.copies = w.copies[-2:] + [(w.now, pickle.dumps(w.db))]
            if r.random() < restores: S.restore(w)
            if r.random() < edits: w.edit()
            if r.random() < rules: r.choice(w.progs).update(calendars=r.choice(('s', 'sl')))
        now = w.now; S.step(w)
        if now < end and r.random() < .6: w.now = now            # much happens within half an hour
    w.bad or S.check(w)
    return w
def duel(seed, M, S):                   # two days of the same few users are open at once, with all waves due, and birthdays move between them; then 20 calm days
    w = S.World(seed, frozenset(M)); r = w.r; del w.progs[1:]; w.progs[0].update(cool=0, zone=0, calendars='sl'); day = w.now // DAY + 1; days = day, day, day + 1
    w.now = (day + 1) * DAY + 40; w.db['next'] = [day]; w.reconciled = w.now // DAY; due, tokens = date.fromordinal, []
    for u in list(w.hist)[r.choice((1, 2, 3)):]: del w.hist[u]; [x.pop(u, None) for x in w.src]
    w.log = [[], []]
    def row(): d, e = r.choice(days), r.choice(days); return (due(d).month, due(d).day), w.lunar[e][1:3], r.choice('sssl')
    def born(u):                         # half of a rename may leave two rows with two birthdays
        at = [i for i in range(SHARDS) if u in w.src[i]]
        for i in at[1:]: w.write(i, u, None)
        w.write((at or [0])[0], u, row()); r.random() < .5 and w.write(3, u, row())
    def lanes(): [w.apply(i, 10 ** 9) for i in (0, 1)]
    def granter_of(m): return S.granter(w, m, *([r.choice(w.procs)] if hasattr(w, 'procs') else []))
    for u in w.hist: born(u)
    w.rows = 1; lanes(); w.reconcile(); copies, restores, edits = r.choice((.01, .05, .15)), r.choice((0, .003, .01, .03)), r.choice((.003, .02)); w.copies, tokens = [(w.now, pickle.dumps(w.db))], [0]
    for _ in range(r.choice((150, 400))):
        x = r.random()
        if r.random() < (.2 if getattr(w, 'aim', False) else copies): w.copies = w.copies[:1] + w.copies[1:][-4:] + [(w.now, pickle.dumps(w.db))]; tokens = tokens[:1] + tokens[1:][-4:] + [w.db['pair'][0]]
        if r.random() < (.04 if getattr(w, 'aim', False) and restores else restores):            # mostly to a copy whose tokens show nothing
            like = [c for c, t in zip(w.copies, tokens) if t == w.register]; kept = w.copies
            if like and r.random() < .7: w.copies = [r.choice(like)]
            S.restore(w); w.copies = kept; r.random() < .3 and w.progs[0].update(calendars=r.choice(('s', 'sl')))
        w.aim = False
        if r.random() < edits: born(r.choice(list(w.hist))); r.random() < .8 and lanes()
        if r.random() < edits / 4: w.progs[0].update(calendars=r.choice(('s', 'sl')))
        if x < .80 and w.actors:
            a = r.choice(w.actors)
            try: next(a[0])
            except StopIteration as e: w.actors.remove(a); a[1] and e.value == 'nak' and w.queue.append(a[1])
        elif x < .85 and len(w.actors) < 5: w.actors.append((S.dispatcher(w, 0, 0), None))
        elif x < .93 and w.queue and len(w.actors) < 5: m = r.choice(w.queue); w.queue.remove(m); w.actors.append((granter_of(m), m))
        elif x < .95 and w.actors: w.asleep.append(w.actors.pop(r.randrange(len(w.actors)))); r.random() < .3 and w.asleep.pop()
        elif x < .97 and w.asleep: w.actors.append(w.asleep.pop(r.randrange(len(w.asleep))))
        elif x < .975 and w.archive: w.queue.append(r.choice(w.archive))
        elif x < .98: S.person(w)
        elif x < .985: w.reconcile()
        w.now += r.choice((1, 2, 5)) if r.random() < .06 else r.choice((31, 65)) if r.random() < .015 else 0
        if w.bad: return w
    lanes()
    return calm(w, S, day)
def calm(w, S, day):                     # 20 days in which nothing fails any more but calls; sleepers wake within three days
    r = w.r
    while w.now < (day + 21) * DAY and not w.bad:
        while w.asleep and r.random() < .15: w.actors.append(w.asleep.pop(r.randrange(len(w.asleep))))
        if w.now > (day + 4) * DAY: w.asleep = []
        w.coupons.down_until = 0; w.actors = w.actors[:6] + [(S.dispatcher(w, 0, 0), None)]
        if w.now % DAY < 300: w.reconcile()
        for m in w.queue[:6]: w.actors.append((S.granter(w, m, *([r.choice(w.procs)] if hasattr(w, 'procs') else [])), m))
        w.queue = []; S.person(w)
        while w.actors and not w.bad:
            a = r.choice(w.actors)
            try: next(a[0])
            except StopIteration: w.actors.remove(a)
        w.now += 200
    w.bad or S.check(w)
    return w
def close(seed, M, S):                  # one user; a seed below 3456 names a script (from 1728 on the birthday moves, and the granter refuses): a granter makes `one` steps, a dispatcher `two`, the ledger is copied, the granter ends, the dispatcher makes `three` steps, the copy is restored, the dispatcher ends
    one, two, three = seed // 144 % 12, seed // 12 % 12, seed % 12; w = S.World(0, frozenset(M)); r = w.r; del w.progs[1:]; w.progs[0].update(cool=0, zone=0, calendars='s'); day = w.now // DAY + 1; d = date.fromordinal(day)
    for u in list(w.hist)[1:]: del w.hist[u]; [x.pop(u, None) for x in w.src]
    w.log = [[], []]
    w.now = (day + 1) * DAY + 40; w.db['next'] = [day]; w.reconciled = w.now // DAY; user, = w.hist; at = next(i for i in range(SHARDS) if user in w.src[i]); w.write(at, user, ((d.month, d.day), None, 's')); w.reconcile()
    def steps(g, n):
        for _ in range(n):
            try: next(g)
            except StopIteration: return
    def dispatcher(): return S.dispatcher(w, 0, 0)
    steps(dispatcher(), 999)
    if seed >= 1728: w.write(at, user, ((5, 5), None, 's'))
    g, other = S.granter(w, w.queue.pop(0), *([{}] if hasattr(w, 'procs') else [])), dispatcher()
    steps(g, one); steps(other, two); w.copies = [(w.now, pickle.dumps(w.db))]; steps(g, 999); steps(other, three); S.restore(w); steps(other, 999)
    return w
def gap(seed, M, S):                    # two granters carry two days of one user (31 December, 1 January) at once, in an order by chance; no other fault
    w = S.World(0, frozenset(M)); w.r = r = random.Random(seed); del w.progs[1:]; w.progs[0].update(cool=0, zone=0, calendars='s'); day = w.now // DAY; due = date.fromordinal
    for u in list(w.hist)[1:]: del w.hist[u]; [x.pop(u, None) for x in w.src]
    w.log = [[], []]; w.now = (day + 1) * DAY + 40; w.db['next'] = [day]; w.reconciled = w.now // DAY; user, = w.hist
    for i in range(SHARDS): w.write(i, user, ((due(day + i).month, due(day + i).day), None, 's') if i < 2 else None)
    w.reconcile(); list(S.dispatcher(w, 0, 0)); pair = {m[1]: m for m in w.queue}
    if len(pair) == 2: actors = [S.granter(w, m, *([{}] if hasattr(w, 'procs') else [])) for m in pair.values()]
    else: actors = w.fail('no pair', pair)
    while actors:
        a = r.choice(actors)
        try: next(a)
        except StopIteration: actors.remove(a)
    return w
def late(seed, M, S):                   # a granter makes `one` steps and sleeps; the ledger is restored to a copy without the day, which begins anew without the user and is closed; the granter makes `two` steps and dies; the user has a birthday the next day
    one, two = seed // 12 % 12, seed % 12; w = S.World(0, frozenset(M)); r = w.r; del w.progs[1:]; w.progs[0].update(cool=0, zone=0, calendars='s'); day = w.now // DAY; due = date.fromordinal
    for u in list(w.hist)[1:]: del w.hist[u]; [x.pop(u, None) for x in w.src]
    w.log = [[], []]; w.now = (day + 1) * DAY + 40; w.db['next'] = [day]; w.reconciled = w.now // DAY; user, = w.hist
    def born(d):
        for i in range(SHARDS): w.write(i, user, ((due(d).month, due(d).day), None, 's') if i == 0 else None)
        w.reconcile()
    born(day); w.copies = [(w.now, pickle.dumps(w.db))]; list(S.dispatcher(w, 0, 0))
    if not w.queue: return w
    g = S.granter(w, w.queue.pop(0), *([{}] if hasattr(w, 'procs') else [])); end = object()
    for _ in range(one): next(g, end)
    S.restore(w); born(day + 1); list(S.dispatcher(w, 0, 0)); w.queue = []; w.now += (seed // 144) * 45; list(S.dispatcher(w, 0, 0)); w.queue = []
    for _ in range(two): next(g, end)
    return calm(w, S, day)
if __name__ == '__main__':
    N = int(sys.argv[1]); first = int(sys.argv[3]) if len(sys.argv) > 3 else 0; S = sys.modules[__name__]
    if len(sys.argv) > 5: spec = importlib.util.spec_from_file_location('other', sys.argv[5]); S = importlib.util.module_from_spec(spec); spec.loader.exec_module(S)
    for M in [()] + [(m,) for m in MUTANTS] if len(sys.argv) < 3 else [tuple(x for m in sys.argv[2].split('+') for x in RULES_OF.get(m, (m,)) if x != 'none')]:
        out, total, began = {}, {}, time.process_time()
        for i in range(first, first + abs(N)):
            w = dict(storm=storm, duel=duel, close=close, gap=gap, late=late)[sys.argv[4]](i, M, S) if len(sys.argv) > 4 else run(i, M)
            for kind in w.bad or ['ok']: out.setdefault(kind, []).append(i)
            for x, y in w.count.items(): total[x] = total.get(x, 0) + y
            if N < 0 and w.bad: break                            # a negative number of seeds ends at the first fault
        print('without' if M else 'whole', *M, {x: len(y) for x, y in out.items()}, 'e.g.', {x: y[:3] for x, y in out.items() if x != 'ok'}, total, f'{i + 1 - first} seeds', w.bad if N < 0 else '', f'{time.process_time() - began:.0f} s', flush=True)
