# A model of tables that are read again where a server lacks transactions that were read (`begin-anew --touched`), to
# read and to run; nothing of the product needs it. `docs/decisions/rereads.md` has the rules and what the model showed.
#
# It needs python3 and no packages: `python3 reread_touched_sim.py SEEDS [NAMES [FIRST]]`.
# NAMES: `none` for all rules, `all` for all rules and then each mutant and alternative, or names of the lists below.
# Names that are joined by `+` hold at once. The model runs the seeds FIRST (0) to FIRST + SEEDS - 1 with each of them.
#
# A world has one source with a chain of servers, a stream, registers, and one to three lanes with a target each. A
# server that takes over may lack the newest transactions, or be one that was there before. The stream loses its newest
# messages, its oldest, or all. The reader dies before and after each write; lanes are killed, fed from the binlog,
# replayed, or out of reach for the command. A person answers a source that stopped with the command; where the command
# refuses, all tables are read (the command without `--touched`). Then the world becomes quiet. A seed ends wrong as
# `lie` (a lane that owes nothing differs from the server whose end it has reached), `reused` (a lane finds two servers
# in one epoch and stops) or `stuck` (a lane waits for ever).
#
# A position is (epoch, place of a transaction), and (epoch, 0) is the lowest of an epoch. A resume point is the number
# of transactions before it, the id of the last one, and the id of one that was sent in part. No two transactions have
# one id, so a server that has the id has all before it too. A claim is (table, key, value).
# The product has the rules of `mended`: the model found `absent` as a hole of `none`. Only a table for which no lane
# can ask is withdrawn in the product as in `none`.
# The model leaves out documents, repairs of keys, lost grants, tables that do not fit, retirements, comparisons, fences,
# undecided XA branches, registers that are lost, and messages that are damaged within the stream.
import random, sys, time
TABLES, KEYS = ('t0', 't1', 't2', 't3'), 5
MUTANTS = {
    'later': '1: the common message is the one after the last of which the server has everything',
    'server_end': '1: the place is the end of the server at the command',
    'no_rereads': '2: no table is read again', 'no_first': '2: the list lacks the tables of the first lost message',
    'rows_only': '2: the list has the tables with rows, and not those of withdrawals and rereads',
    'not_gone': '2: a table that the server proves absent is to be read, and not withdrawn',
    'at_end': '3: the rereads stand at the position of the end of the stream',
    'behind': '3: the rereads come in a message after the one that enters the epoch',
    'unstored': '3: a lane keeps the rereads in memory, and not in the commit',
    'direct': '4: a direct feed takes a lane with lost transactions on from the last one that the server has',
    'spans': '4: the message that enters the epoch continues a lane that is further than the end of the stream',
    'any_chunk': '5: a chunk counts whatever its server and its epoch',
    'old_chunk': '5: a chunk counts only if its server is that of the lane, and chunks from before the epoch count too',
    'away': '6: a target that does not answer is left out', 'ahead': '6: a lane may be above the end of the stream',
    'replayed': '6: a lane may be replayed', 'part': '6: the stream may end within a transaction',
    'any_end': '7: the register counts for each end of the stream', 'any_server': '7: the register counts for each server',
    'every': '8: a reread of every table among the lost messages is passed over',
    'counts': '9: a part of an earlier crossing counts as a change of a lane',
    'no_cut': 'a fail-over within a replay is like any other',
    'common_point': '1: a message of rereads alone reports the resume point and the server of the common message',
    'no_part': 'a part of a transaction above the position of a lane, of which its resume point does not tell, cuts no replay short',
    'cut_stream': 'a fail-over within a replay has all tables read only if the lane enters the epoch by the stream'}
ALTERNATIVES = {
    'earlier': '1: the common message is an earlier one than the last of which the server has everything',
    'whole': 'the message of the rereads always has the position on the new server too',
    'absent': 'a table that is owed and that the server proves absent counts as read without a row; no crossing withdraws',
    'any_replay': 'a replay may go to the position of any earlier message of the beginning'}
RULES_OF = {'mended': ('absent',)}
ZERO = (0, 0)
class Server:                            # a server has a history of transactions, and its tables after each of them
    n = 0
    def __init__(s, w, ids, log, snaps):
        Server.n += 1; s.w, s.sid, s.off, s.ids, s.log, s.snaps, s.kept = w, Server.n, w.r.randrange(1, 40), ids, log, snaps, 0
    def tables(s): return s.snaps[-1]
    def lsn(s, epoch, g): return epoch, s.off + g
    def resume(s, g, part=None): return g, s.ids[g - 1] if g else None, part
    def holds(s, resume):
        g, last, part = resume
        return g <= len(s.ids) and (not g or s.ids[g - 1] == last) and (part is None or g < len(s.ids) and s.ids[g] == part)
    def fork(s, n): return Server(s.w, s.ids[:n], s.log[:n], s.snaps[:n + 1])
    def write(s):
        r, tabs, ev = s.w.r, dict(s.tables()), []; c = r.random()
        def change(name, key, new): rows = dict(tabs[name]); rows.pop(key, None); rows.update({key: new} if new is not None else {}); tabs[name] = rows
        name = r.choice(TABLES if r.random() < .5 else TABLES[:2])
        if name not in tabs: tabs[name] = {}
        if c < .80:
            for _ in range(r.choice((1, 1, 2, 3))):
                t, key = r.choice(sorted(tabs)) if ev and r.random() < .5 else name, r.randrange(KEYS); old = tabs[t].get(key)
                new = None if old is not None and r.random() < .4 else r.randrange(6)
                if old != new: change(t, key, new); ev.append(('row', t, key, old, new))
        elif c < .86: tabs[name] = {}; ev.append(('gone', name))                                   # TRUNCATE
        elif c < .92: del tabs[name]; ev.append(('gone', name))                                    # DROP
        else:
            every = c > .96
            for t in sorted(tabs) if every else [name]:
                for key in range(KEYS):
                    if r.random() < .4: change(t, key, r.choice((None, r.randrange(6))))
            ev.append(('re', None if every else name))
        s.w.ids += 1; s.ids.append(s.w.ids); s.log.append(ev); s.snaps.append(tabs)
    def records(s, epoch, g): return [e + (s.lsn(epoch, g + 1),) for e in s.log[g]]
class Feed:                              # cuts a binlog into messages, for the reader and for direct feeds alike
    def __init__(s, v, epoch, prev, resume, sid):
        s.v, s.epoch, s.prev, s.g, s.sent, s.cont, s.context, s.front, s.open = v, epoch, prev, resume[0], 0, False, (prev, resume, sid), [], resume[1:]
    def message(s, r, alone=False):
        v, recs, pos, part = s.v, s.front, s.prev, s.context[1][2] if alone else None; s.front = []
        if not alone:
            pos = max(pos, v.lsn(s.epoch, s.g)) if not s.sent else pos
            for _ in range(r.randrange(4)):
                if s.g == len(v.ids): break
                todo = v.records(s.epoch, s.g)[s.sent:]
                if len(todo) > 1 and r.random() < .15: recs = recs + todo[:1]; s.sent += 1; break
                recs = recs + todo; s.g += 1; s.sent = 0; pos = v.lsn(s.epoch, s.g)
            part = v.ids[s.g] if s.sent else s.open[1] if v.resume(s.g)[1] == s.open[0] else None    # A part counts until its transaction was sent as a whole.
        resume, sid = v.resume(s.g, part), v.sid
        if pos == s.context[0]: resume, sid = s.context[1][:2] + (part,), s.context[2]              # Position, resume point and server belong together.
        else: s.context = pos, resume, sid
        m = dict(prev=s.prev, pos=pos, res=resume, sid=sid, recs=recs, cont=s.cont); s.cont = bool(recs) and recs[-1][-1] > pos or s.cont and not recs; s.prev = pos; return m
class World:
    def __init__(w, seed, M):
        r = w.r = random.Random(seed); Server.n = 0; w.M, w.ids, w.bad, w.quiet, w.v = M, 0, None, False, None; w.v = Server(w, [], [], [{t: {} for t in TABLES[:3]}]); w.past_servers = []
        w.reg, w.crossing, w.msgs, w.mids, w.reader, w.past, w.shared, w.stopped = dict(epoch=1, sid=1, bid=0, place=0), None, [], 0, None, [], {}, False
        w.count = dict.fromkeys('crossings crossed refused whole alone waits'.split(), 0); w.parts = r.choice((0, .2, .6))
        w.lanes = [Lane(w) for _ in range(r.choice((1, 2, 3)))]
    def end(w): return w.msgs[-1] if w.msgs else None
    def present(w): return [x for x in w.lanes if x.p['bid'] == w.reg['bid']]
    def open(w):                         # where the reader enters, from the registers and the end of the stream alone
        v, end, reg, M = w.v, w.end(), w.reg, w.M; w.stopped = False; epoch, sid = reg['epoch'], reg['sid']
        for pos, other in [(end['pos'], end['sid'])] if end else [(x.p['pos'], x.p['sid']) for x in w.lanes]:
            if pos[0] > epoch: epoch, sid = pos[0], other
            elif pos[0] == epoch and other != sid: sid = None
        epoch += sid != v.sid; fresh = end and end['bid'] < reg['bid']; c = w.crossing; front = None
        if end is None:
            if any(x.away for x in w.lanes): return
            lanes = w.present()
            if lanes: p = max((x.p for x in lanes), key=lambda p: p['pos']); at, resume, was = p['pos'], p['res'], p['sid']
            else: fresh = True
        if fresh: at, resume, was = v.lsn(reg['epoch'], reg['place']), reg['res'], reg['sid']
        elif end:
            at, resume, was = end['pos'], end['res'], end['sid']
            if c and ('any_end' in M or c['end'] == at and c['bid'] == end['bid']) and v.holds(c['res'][:2] + (resume[2] or c['res'][2],)) and c['res'][0] >= v.kept and ('any_server' in M or c['sid'] == v.sid):
                front = [('gone' if gone else 're', t, at if 'at_end' in M else (epoch, 0)) for t, gone in c['tables']]
                if 'common_point' in M: resume, was = c['res'], c['before']
        entry = c['res'][:2] + (end['res'][2] or c['res'][2],) if front is not None else resume
        if not v.holds(entry) or entry[0] < v.kept: w.stopped = True; return
        f = w.reader = Feed(v, epoch, at, entry, was); f.context = at, resume, was
        if front is not None: f.front, f.crossing = front, c; w.count['crossed'] += 1
        f.bid = reg['bid']; f.late = []; f.claimed = False
        if 'behind' in M: f.late, f.front = f.front, []
    def read(w):
        f, r = w.reader, w.r
        if f is None: return w.open()
        if f.v is not w.v or f.bid != w.reg['bid']: w.reader = None; return
        if not f.claimed:
            if w.reg['sid'] != f.v.sid or w.reg['epoch'] != f.epoch: w.reg.update(epoch=f.epoch, sid=f.v.sid)
            f.claimed = True
            if r.random() < .1: w.reader = None; return          # The reader dies before its first message is stored.
        alone = bool(f.front) and r.random() < w.parts and 'whole' not in w.M; w.count['alone'] += alone
        if f.late and f.prev[0] == f.epoch: f.front, f.late = f.late, []
        if not alone and not f.front and f.g == len(f.v.ids) and not f.sent and f.prev == f.v.lsn(f.epoch, f.g) and r.random() < .8: return
        m = f.message(r, alone); w.mids += 1; m.update(id=w.mids, bid=f.bid); w.msgs.append(m); w.past.append(m)
    def touched(w):                      # the command with `--touched`; it returns whether the register names a crossing
        end, v, M, reg = w.end(), w.v, w.M, w.reg; w.count['refused'] += 1
        if end is None or end['bid'] != reg['bid'] or any(x.away for x in w.lanes) and 'away' not in M: return False
        if end['res'][2] is not None and 'part' not in M: return False
        for x in w.present():
            p = x.p; changed = ZERO if p['hc'][1] == 0 and 'counts' not in M else p['hc']
            if x.away: continue                                  # Only a mutant comes here with a lane that does not answer.
            if max(p['pos'], p['hi'], changed) > end['pos'] and 'ahead' not in M: return False
            if p['pos'] < p['hi'] and 'replayed' not in M: return False
        if v.holds(end['res']): return False
        mine = [i for i, m in enumerate(w.msgs) if m['bid'] == reg['bid']]; good = [i for i in mine if v.holds(w.msgs[i]['res'])]
        if not good or w.msgs[good[-1]]['res'][0] < v.kept: return False
        i = good[-1]; low = i
        if 'earlier' in M: i = low = w.r.choice([j for j in good if w.msgs[j]['res'][0] >= v.kept])
        lost = w.msgs[i + 1:]; res = w.msgs[i]['res']
        if 'later' in M: lost = lost[1:]; res = v.resume(min(len(v.ids), w.msgs[min(i + 1, len(w.msgs) - 1)]['res'][0]))
        if 'server_end' in M: res = v.resume(len(v.ids))
        if 'no_first' in M: lost = lost[1:]
        recs = [e for m in lost for e in m['recs'] if 'rows_only' not in M or e[0] == 'row']
        if any(e[1] is None for e in recs) and 'every' not in M: return False
        names = sorted({e[1] for e in recs if e[1]}) if 'no_rereads' not in M else []
        w.crossing = dict(end=end['pos'], bid=reg['bid'], res=res, before=w.msgs[low]['sid'], sid=v.sid, tables=[(t, t not in v.tables() and not {'not_gone', 'absent'} & M) for t in names])
        w.count['refused'] -= 1; w.count['crossings'] += 1; w.reader = None; return True
    def begin(w):                        # the command without `--touched`: all tables are read again
        w.count['whole'] += 1; v = w.v; known = [w.reg['epoch']] + [m['pos'][0] for m in w.msgs[-1:]] + [max(x.p['hi'], x.p['hc'])[0] for x in w.lanes]
        w.reg = dict(epoch=max(known) + 1, sid=v.sid, bid=w.reg['bid'] + 1, place=len(v.ids), res=v.resume(len(v.ids))); w.reader = None
    def fail_over(w):
        r, v = w.r, w.v; w.reader = None; c = r.random(); w.past_servers = (w.past_servers + [v])[-4:]; old = [s for s in w.past_servers if s is not v]
        ys = [y for y in w.lanes if y.p['res'][2] and y.p['sid'] == v.sid and v.holds(y.p['res'])] if r.random() < .5 else []
        k = next((i for i, m in enumerate(w.msgs) if m['res'][2] == ys[0].p['res'][2]), None) if ys else None
        if k:                                                    # Lanes with a part of a transaction are replayed, and stream and server lose the transaction.
            w.v = v.fork(ys[0].p['res'][0])
            for y in ys: y.replay(v)
            w.msgs = w.msgs[:k]
        elif c < .05 and w.crossing and any(s.sid == w.crossing['sid'] for s in old): w.v = next(s for s in old if s.sid == w.crossing['sid'])
        elif c < .15 and old: w.v = r.choice(old)                                                     # A server that was there before comes back.
        elif c < .30 and old: s = r.choice(old); w.v = s.fork(len(s.ids))
        else: w.v = v.fork(max(0, len(v.ids) - r.choice((0, 0, 1, 1, 2, 3, 5))))
        for _ in range(r.choice((0, 0, 1, 3))): w.v.write()
class Lane:
    def __init__(s, w):
        s.w, s.away, s.rows = w, False, {}; s.p = dict(pos=w.v.lsn(1, 0), res=(0, None, None), sid=1, bid=0, hi=w.v.lsn(1, 0), hc=ZERO, pend={}, all=None, done=(), cur=None, mid=None); s.load()
    def load(s): s.flight, s.notes, s.direct, s.memory = None, None, None, {}
    def apply(s, op, t, c, lsn):
        rows = s.rows
        if op == 'up' and rows.get((t, c), ZERO) <= lsn: rows[t, c] = lsn
        elif op == 'del' and rows.get((t, c), (9e9, 0)) <= lsn: del rows[t, c]
        elif op in ('gone', 'sweep'):
            for q in [q for q, at in rows.items() if q[0] == t and (at <= lsn if op == 'gone' else at < lsn)]: del rows[q]
    def note(s, t, c, lsn):
        if s.notes and s.notes['t'] == t: s.notes['c'][c] = lsn
    def anew(s): p = s.p; p.update(all=p['hc'], done=(), cur=None, pend={}); s.flight = s.notes = None
    def take(s, m, mid):                 # one message in one commit
        p, at = s.p, s.p['pos']; cut = at < p['hi'] and p['hi'][0] < m['pos'][0]
        if 'no_part' not in s.w.M and p['hc'] > at and p['hc'][1] and p['res'][2] is None and p['hc'][0] < m['pos'][0]: cut = True
        if 'no_cut' in s.w.M or 'cut_stream' in s.w.M and not mid: cut = False
        for kind, t, *row, lsn in m['recs']:
            if lsn <= at: continue
            p['hc'] = max(p['hc'], lsn)
            if kind == 'row':
                key, old, new = row
                for c, op in [((key, old), 'del')] * (old is not None) + [((key, new), 'up')] * (new is not None): s.note(t, c, lsn); s.apply(op, t, c, lsn)
            elif kind == 'gone':
                s.apply('gone', t, None, lsn); s.note(t, None, lsn)
                if p['pend'].get(t, lsn) <= lsn: p['pend'].pop(t, None)
                if p['all'] and p['all'] <= lsn and t not in p['done']: p['done'] += (t,)
                if p['cur'] and p['cur']['t'] == t: p['cur'] = s.flight = None
            elif t is None: s.anew()
            elif lsn[1] == 0 and 'unstored' in s.w.M: s.memory[t] = lsn
            else: p['pend'][t] = max(lsn, p['pend'].get(t, lsn))
        if m['pos'] >= at:
            if m['pos'][0] > at[0]:
                if not {'any_chunk', 'old_chunk'} & s.w.M: p['hc'] = max(p['hc'], m['pos']); s.flight = s.notes = None
            part = p['res'][2] if m['pos'] == at else None
            p.update(pos=m['pos'], res=m['res'][:2] + (m['res'][2] or part,), sid=m['sid'])
        p['hi'] = max(p['hi'], p['pos']); p['mid'] = mid
        if cut: s.anew()
    def step(s):
        w, p, end = s.w, s.p, s.w.end(); v, M, r = w.v, w.M, w.r
        if end is None or end['bid'] < p['bid']: return
        if end['bid'] > p['bid']:        # The source began anew: this lane needs no link.
            p.update(pos=end['pos'], res=end['res'][:2] + (None,), sid=end['sid'], bid=end['bid'], hi=max(p['hi'], end['pos']), hc=max(p['hc'], end['pos'])); p['mid'] = None; s.direct = None; s.anew(); return
        if p['pos'][0] == end['pos'][0] and p['sid'] != end['sid']: w.bad = 'reused'; return
        k = next((i for i, m in enumerate(w.msgs) if m['id'] == p['mid']), None); follows = k is not None and not p['pos'][0] < p['hi'][0]
        k = k + 1 if follows else next((i for i, m in enumerate(w.msgs) if m['pos'] >= p['pos'] and m['bid'] == p['bid']), None)
        if s.direct is None or r.random() < .5:
            if follows and k == len(w.msgs): return
            if k is None and end['pos'] < p['pos'] and end['pos'][0] == p['pos'][0] and r.random() < .7: return
            if k is not None and k < len(w.msgs) and (follows or p['pos'][0] >= p['hi'][0]):
                m = w.msgs[k]; pos = p['pos']; part = p['res'][2]; between = m['prev'][0] < m['pos'][0]
                if m['bid'] == p['bid'] and m['pos'][0] == pos[0] and m['sid'] != p['sid']: w.bad = 'reused'; return
                spans = between and m['prev'] != pos and m['pos'] > pos
                if 'spans' in M and m['prev'] < pos: spans = False
                announced = w.msgs[k - 1]['res'][2] if follows else None
                lacks = m['cont'] and m['prev'] == pos and not follows
                if m['bid'] == p['bid'] and m['prev'] <= pos and not lacks and not spans and (not between or part in (None, announced, m['res'][2])): s.direct = None; s.take(m, m['id']); return
        f = s.direct                     # The direct feed reads the server and the epoch that the end of the stream names.
        if f is None or f.v is not v or f.epoch != end['pos'][0] or f.after != p['pos']:
            if v.sid != end['sid'] or end['pos'][0] < p['hi'][0]: return
            res = p['res']
            if not v.holds(res):
                if 'direct' not in M: s.refused = True; return
                res = v.resume(next((g for g in range(min(res[0], len(v.ids)), -1, -1) if any(o.holds(v.resume(g)) and o.sid == p['sid'] for o in w.past_servers)), 0))
            if res[0] < v.kept: s.refused = True; return         # A person has all tables read.
            f = s.direct = Feed(v, end['pos'][0], p['pos'], res, p['sid'])
        s.take(f.message(r), None); f.after = p['pos']
    def refresh(s):
        w, p, v, r = s.w, s.p, s.w.v, s.w.r; any_chunk = 'any_chunk' in w.M
        if s.memory: p['pend'].update({t: max(a, p['pend'].get(t, a)) for t, a in s.memory.items()}) if r.random() < .3 else None; s.memory = {} if not p['pend'].keys().isdisjoint(s.memory) else s.memory
        if p['pos'] < p['hi']: s.flight = None; return
        if s.flight: return s.write()
        cur, there = p['cur'], v.tables()
        if 'absent' in w.M: there = {t: there.get(t, {}) for t in TABLES}
        if cur and cur['t'] not in there: p['cur'] = s.notes = None; return                         # A table that is not there steps aside.
        if not cur:
            t = next((t for t in sorted(p['pend']) if t in there), None)
            if t is None and p['all']:
                t = next((t for t in TABLES if t not in p['done'] and t in there), None)
                if t is None:            # A person removes claims of the tables that are gone.
                    if v.sid != p['sid']: return
                    for gone in TABLES:
                        if gone not in p['done'] and p['res'][0] == len(v.ids): s.apply('gone', gone, None, p['pos'])
                    if p['res'][0] == len(v.ids): p.update(all=None, done=())
                    return
            if t is None: return
            p['cur'] = dict(t=t, chunk=0, chunks=r.choice((1, 1, 2)), first=None); s.notes = None; return
        t = cur['t']
        if not s.notes or s.notes['t'] != t: s.notes = dict(t=t, c={}, floor=p['hc'])
        floor = max(s.notes['floor'], cur['first'] or ZERO); name = t, cur['chunk'], cur['chunks']; old = w.shared.get(name); epoch = p['pos'][0]; low = v.lsn(epoch, len(v.ids))
        if old and old['low'] >= floor and (any_chunk or old['low'][0] == epoch and old['sid'] == p['sid']) and r.random() < .5: s.flight = old; return
        if low < floor: return
        span = range(cur['chunk'] * KEYS // cur['chunks'], (cur['chunk'] + 1) * KEYS // cur['chunks'])
        s.flight = w.shared[name] = dict(t=t, low=low, sid=v.sid, claims={(k, x) for k, x in there[t].items() if k in span})
    def write(s):
        w, f, p, no = s.w, s.flight, s.p, s.notes
        if not no or not p['cur'] or p['cur']['t'] != f['t'] or 'any_chunk' not in w.M and (f['sid'] != p['sid'] or f['low'][0] != p['pos'][0] and 'old_chunk' not in w.M): s.flight = None; return
        if p['pos'] < f['low']: return
        s.flight, t, low, cur = None, f['t'], f['low'], p['cur']
        for c in f['claims']:
            if no['c'].get(c, ZERO) <= low and no['c'].get(None, ZERO) <= low: s.apply('up', t, c, low)
        cur['first'] = cur['first'] or low; cur['chunk'] += 1
        if cur['chunk'] < cur['chunks']: return
        s.apply('sweep', t, None, cur['first']); p['cur'] = s.notes = None
        if p['pend'].get(t, cur['first']) <= cur['first']: p['pend'].pop(t, None)
        if p['all'] and p['all'] <= cur['first'] and t not in p['done']: p['done'] += (t,)
    def replay(s, v=None):               # a person sets the lane back, on the server of that moment
        w, p, v, end = s.w, s.p, v or s.w.v, s.w.end()
        if 'any_replay' in w.M: back = [(m['pos'], m['res'][:2] + (None,), m['sid']) for m in w.past if m['pos'] < p['pos'] and m['bid'] == p['bid']]
        elif end is None or end['sid'] != v.sid or end['bid'] != p['bid'] or (w.reg['epoch'], w.reg['sid']) != (end['pos'][0], v.sid) or p['pos'][0] != end['pos'][0]: return
        else: back = [(v.lsn(end['pos'][0], g), v.resume(g), v.sid) for g in range(v.kept, len(v.ids)) if v.lsn(end['pos'][0], g) < p['pos']]
        if back: p['pos'], p['res'], p['sid'] = w.r.choice(back[-12:]); p['mid'] = None; s.load()
    def owes(s): p = s.p; return p['pend'] or p['all'] or s.memory or p['pos'] < p['hi']
    def is_at_end(s): p, w = s.p, s.w; return p['sid'] == w.v.sid and p['res'] == w.v.resume(len(w.v.ids)) and p['bid'] == w.reg['bid'] and p['pos'][0] == w.reg['epoch']
    def is_right(s): return set(s.rows) == {(t, c) for t, rows in s.w.v.tables().items() for c in rows.items()}
    def check(s):
        if not s.owes() and s.is_at_end() and not s.is_right(): s.w.bad = s.w.bad or 'lie'
def run(seed, M):
    w = World(seed, frozenset(M)); r = w.r
    for x in w.lanes: x.refused = False
    loses, replays = r.choice((.002, .012, .03)), r.choice((0, .01, .04))
    for _ in range(r.randrange(120, 400)):
        x, c = r.choice(w.lanes), r.random()
        if c < .16: w.v.write()
        elif c < .36: w.read()
        elif c < .60: x.step()
        elif c < .78: [x.refresh() for _ in range(r.choice((1, 1, 3, 6)))]
        elif c < .80: w.fail_over() if len(w.v.ids) > 2 else None
        elif c < .80 + loses: k = r.randrange(len(w.msgs) + 1); k = max(k, len(w.msgs) - 4); w.msgs, w.reader = w.msgs[:k], None      # The stream rolls back.
        elif c < .833: w.msgs, w.reader = ([], None) if r.random() < .2 and loses > .01 else (w.msgs, w.reader)                      # The stream is lost.
        elif c < .845: k = r.randrange(len(w.msgs) // 2 + 1); w.msgs = w.msgs[k:]                                                    # Retention takes the oldest messages.
        elif c < .85: w.v.kept = max(w.v.kept, len(w.v.ids) - 6)                                                                     # The server purges its binlog.
        elif c < .87: w.reader = None
        elif c < .89: x.load()
        elif c < .89 + replays: x.replay()
        elif c < .94: x.away = not x.away and r.random() < .15
        elif c < .948:                                           # All at once: lanes are replayed, the stream rolls back, another server comes.
            for y in w.lanes: r.random() < .6 and y.replay()
            w.msgs = w.msgs[:max(0, len(w.msgs) - r.choice((0, 1, 1, 2)))]; w.reader = None; len(w.v.ids) > 2 and w.fail_over()
            r.random() < .7 and w.read()
        elif c < .956:                                           # Everybody keeps up with the server for a while.
            for _ in range(10):
                w.read()
                for y in w.lanes: y.step(); y.refresh(); y.refresh(); y.refresh(); y.check()
        elif w.stopped: w.touched() or r.random() < .05 and w.begin()
        if w.stopped and r.random() < .1: w.touched()
        for x in w.lanes: x.check()
        if w.bad: return w
    busy = r.random() < .5
    for i in range(700):
        if busy and i < 40 and r.random() < .4: w.v.write()
        w.read()
        for x in w.lanes: x.away, x.refused = False, False; x.step(); x.refresh(); x.refresh(); x.check()
        if w.bad: return w
        if w.stopped and w.reader is None: w.touched() or i > 30 and w.begin()
        elif i % 60 == 59 and any(x.refused for x in w.lanes): w.count['waits'] += 1; w.begin()                           # The binlog refuses a lane, and the stream lacks the message that it needs.
        if i > 60 and all(x.is_at_end() and not x.owes() for x in w.lanes): return w
    w.bad = 'stuck'; return w
if __name__ == '__main__':
    N, names, first = int(sys.argv[1]), (sys.argv[2:] + ['none'])[0], int(sys.argv[3]) if len(sys.argv) > 3 else 0
    for M in ['none', 'mended'] + [('' if m in ('not_gone', 'any_server') else 'mended+') + m for m in (*MUTANTS, 'earlier', 'any_replay')] if names == 'all' else names.split(','):
        out, total, began, M = {}, {}, time.process_time(), [x for m in M.split('+') for x in RULES_OF.get(m, (m,)) if x != 'none']
        assert set(M) <= {*MUTANTS, *ALTERNATIVES}, M
        for seed in range(first, first + N):
            w = run(seed, M); out.setdefault(w.bad or 'ok', []).append(seed)
            for k, n in w.count.items(): total[k] = total.get(k, 0) + n
        print('+'.join(M) or 'all rules', {k: len(x) for k, x in sorted(out.items())}, 'e.g.', {k: x[:3] for k, x in out.items() if k != 'ok'}, total, f'{time.process_time() - began:.0f} s', flush=True)
