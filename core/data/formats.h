// The readers behind the rows of dataset.cc, one per format, and the IDX parser, which other readers share.
// Thread-safe: free functions. Every error names the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/dataset.h"

namespace switchyard {

class FileTree;

// An IDX file (http://yann.lecun.com/exdb/mnist, "the IDX file format") of unsigned bytes, 1 to 4 dimensions, plain or
// gzip. bytes.size() is the product of dims.
struct IdxArray {
  std::vector<int64_t> dims;
  std::vector<uint8_t> bytes;
};
StatusOr<IdxArray> ReadIdx(const std::string& path);
std::vector<uint8_t> EncodeIdx(const IdxArray& array);  // a plain file's content
// The file <prefix>-<kind>* of a split in a folder: prefix is train, or t10k, test, val or validation; kind is images
// or labels. NotFound names what was looked for.
StatusOr<std::string> FindIdx(const std::string& folder, Split split, const std::string& kind);

// <prefix>-images* and <prefix>-labels* in the folder `path`; prefix is train, or t10k, test or val. Images (N, H, W)
// or (N, H, W, C). Without class names, the numbers up to the largest training label are (or up to the largest of the
// split, where there are no training labels).
StatusOr<std::unique_ptr<Dataset>> OpenIdx(const std::string& name, const std::string& path, Split split,
                                           std::vector<std::string> class_names, Augmentation augmentation);

// data_batch_*.bin and test_batch.bin anywhere below the folder or archive `path`; the file size gives the record
// count.
StatusOr<std::unique_ptr<Dataset>> OpenCifar10(const std::string& path, Split split);

// Whether the last part of the path ends as JPEG and PNG files do; hidden files are no images.
bool IsImageName(const std::string& path);

// A sentence about `count` files, the first of them `first`, that are of none of these formats; "" of none.
std::string LeftOutText(int64_t count, const std::string& first, const std::string& formats);

// A sentence about the files below `folder` ("" or "name/…/") of a tree that IsImageName does not take, "" where there
// are none. Hidden files do not count.
std::string ImagesLeftOut(const FileTree& tree, const std::string& folder);

// The names that a split's folder may have, the first that is there counts: train, or val, validation or valid, or
// test.
std::vector<std::string> SplitFolders(Split split);

// [root/]split/class/**.{jpg,jpeg,png} in a folder or tar; split is train, or val, validation or valid, or test. The
// classes are those of train, or the split's own where there is no train folder.
StatusOr<std::unique_ptr<Dataset>> OpenImageFolder(const std::string& name, const std::string& path, Split split);

// images/SPLIT/NAME.{jpg,jpeg,png} with masks/SPLIT/NAME.png in a folder or tar, also one folder down; SPLIT as in
// image folders, NAME may lie in folders below it. Masks as DecodeMask reads them: class ids, 255 ignored. classes.txt
// beside images: a name per line, by id; without it every mask of train (or of the split, where there is none) is read
// for the largest id, and classes are called "class 0", ….
StatusOr<std::unique_ptr<Dataset>> OpenMaskFolders(const std::string& name, const std::string& path, Split split);

// leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png with gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png, as Cityscapes (Cordts et
// al., CVPR 2016) is unpacked; train, val and test. Its 34 label ids become the 19 classes of its benchmark; the others
// are ignored.
StatusOr<std::unique_ptr<Dataset>> OpenCityscapes(const std::string& path, Split split);

std::vector<uint8_t> CityscapesLabelIds();  // of those classes

// CamVid as one tar of photographs, camvid_images.tar, with {train,val,test}-labels-idx3-ubyte[.gz] (N, H, W), of which
// record i belongs to line i of {train,val,test}-files.txt. Label 11, unlabelled, is ignored.
StatusOr<std::unique_ptr<Dataset>> OpenCamVid(const std::string& path, Split split);

// Whether the last part of the path ends as files of volumes do: .nii, .nii.gz, .npy.
bool IsVolumeName(const std::string& path);

// One file of many volumes, IDX of four dimensions (N, D, H, W). IsIdxVolumesName: -idx4-ubyte or -idx4-ubyte.gz.
bool IsIdxVolumesName(const std::string& path);
StatusOr<IdxArray> ReadIdxVolumes(const std::string& path);
Volume IdxVolume(const IdxArray& volumes, int64_t index);

// Volumes with masks in a folder: split/images/NAME and split/labels/NAME, each .nii, .nii.gz or .npy of equal extents;
// split is train, or val, validation or valid, or test. Class names, background first, are the lines of classes.txt, or
// the numbers up to the largest training label, for which all training labels are read. Or pairs of IDX files (N, D, H,
// W), found as those of images; class_names is for them.
StatusOr<std::unique_ptr<Dataset>> OpenVolumes(const std::string& name, const std::string& path, Split split,
                                               std::vector<std::string> class_names = {});

// A few random images again and again, for throughput.
std::unique_ptr<Dataset> MakeSynthetic(const DatasetOptions& options, Split split);

// Ten kinds of shapes, drawn from (seed, split, index).
std::unique_ptr<Dataset> MakeShapes(const DatasetOptions& options, Split split);

}  // namespace switchyard
