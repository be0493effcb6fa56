// What speculation does, while it does it: counts of the passes that have come, drawn once a frame.

const SHOWN = 100; // passes in the sparkline
const MEAN = 8; // passes that its line is a mean of

export function meters(find) {
  let passes, tokens, proposed, accepted, places, sizes, start, first, last, frame = 0;
  const columns = find('positions'), note = find('sparknote');

  function reset(k = 0) {
    [passes, tokens, proposed, accepted, places, sizes] = [0, 0, 0, 0, [], []];
    [start, first, last] = [performance.now(), 0, 0];
    columns.replaceChildren();
    for (let i = 0; i < k; i += 1) column(i);
    draw();
  }

  function pass(told) {
    const kept = told.proposed.filter((node) => node.kind === 'accepted').length;
    const depths = [];
    told.proposed.forEach((node) => depths.push(node.parent < 0 ? 1 : depths[node.parent] + 1));
    const deepest = Math.max(0, ...depths), size = kept + (told.final ? 1 : 0);
    for (let i = 0; i < deepest; i += 1) {
      places[i] ??= [0, 0];
      places[i][0] += 1;
      places[i][1] += i < kept;
    }
    last = performance.now();
    first ||= last;
    passes += 1;
    tokens += size;
    proposed += told.proposed.length;
    accepted += kept;
    sizes.push(size);
    frame ||= requestAnimationFrame(draw);
  }

  function column(i) {
    const made = document.createElement('li');
    const [bar, fill, share, place] = ['bar', 'fill', 'share', 'place'].map((name) => {
      const el = document.createElement('span');
      el.className = name;
      return el;
    });
    bar.append(fill);
    share.textContent = '–';
    place.textContent = i + 1;
    made.append(bar, share, place);
    columns.append(made);
    return made;
  }

  function draw() {
    frame = 0;
    const seconds = (last - first) / 1000, put = (id, text) => { find(id).textContent = text; };
    put('per_pass', passes ? (tokens / passes).toFixed(2) : '–');
    put('acceptance', proposed ? `${Math.round((100 * accepted) / proposed)} %` : '–');
    put('speed', seconds > 0 ? ((tokens - sizes[0]) / seconds).toFixed(1) : '–');
    put('count', passes ? tokens : '–');
    put('passes', passes || '–');
    put('first', first ? `${Math.round(first - start)} ms` : '–');
    places.forEach(([drafted, kept], i) => {
      const made = columns.children[i] ?? column(i), share = kept / drafted;
      made.querySelector('.fill').style.height = `${100 * share}%`;
      made.querySelector('.share').textContent = `${Math.round(100 * share)} %`;
      made.title = `position ${i + 1}: ${kept} of ${drafted} passes accepted it`;
    });
    spark();
  }

  function spark() {
    const shown = sizes.slice(-SHOWN), most = Math.max(2, ...shown), begin = sizes.length - shown.length;
    find('spark').setAttribute('viewBox', `0 0 ${Math.max(24, shown.length)} ${most}`);
    find('sparkbars').setAttribute('d', shown.map((size, i) => `M${i} ${most}v${-size}h.8v${size}z`).join(''));
    const mean = shown.map((_, i) => {
      const near = sizes.slice(Math.max(0, begin + i - MEAN + 1), begin + i + 1);
      return most - near.reduce((sum, size) => sum + size, 0) / near.length;
    });
    find('sparkmean').setAttribute('d', mean.map((y, i) => `${i ? 'L' : 'M'}${i + 0.4} ${y.toFixed(2)}`).join(''));
    note.textContent = shown.length ? `${Math.min(...shown)} to ${Math.max(...shown)}; line: mean of ${MEAN}` : 'line: a running mean';
  }

  reset();
  return {
    reset, pass,
    draw() { cancelAnimationFrame(frame); draw(); },
    get seconds() { return (last - start) / 1000; },
    get passes() { return passes; },
    get tokens() { return tokens; },
  };
}
